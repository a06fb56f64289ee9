"""Settings of the acceptance rules. Importing this imports no torch."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specdec_core.interface import RuleConfig
from specdec_core.interface.spec import LosslessAt


class BlockRuleConfig(RuleConfig):
    """The draft as a whole: at least as many tokens as token; lossless."""

    replays_from: ClassVar[Literal["token", "all"] | None] = "token"

    @property
    def lossless_at(self) -> LosslessAt:
        """Always; `BlockRule` has the proof."""
        return "always"


class RejectionRuleConfig(RuleConfig):
    """Rejection sampling, to compare with; lossless."""

    replays_from: ClassVar[Literal["token", "all"] | None] = "all"

    @property
    def lossless_at(self) -> LosslessAt:
        """Always; `RejectionRule` has the proof."""
        return "always"


class ExactMatchRuleConfig(RuleConfig):
    """Tokens that equal the argmax, for temperature 0 only; lossless."""

    greedy_only: ClassVar[bool] = True

    @property
    def lossless_at(self) -> LosslessAt:
        """Greedy decoding, which is all that the rule works in."""
        return "greedy"


class TypicalRuleConfig(RuleConfig):
    """Tokens that are typical of the target, as in Medusa; lossy where it samples.

    How probable a draft token must be: p(x) > min(epsilon, delta exp(-H(p))).
    """

    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.09
    """Tokens with a larger p(x) are accepted, whatever the entropy."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Factor of exp(-H(p)), the threshold where the target is unsure."""

    @property
    def lossless_at(self) -> LosslessAt:
        """In greedy decoding, where p is one-hot."""
        return "greedy"


class TopKRuleConfig(RuleConfig):
    """Tokens among the k most probable ones of the target; lossy.

    How many of the most probable tokens are accepted.
    """

    k: Annotated[int, Field(ge=1)] = 3
    """A draft token is accepted if it is one of the k most probable ones of p; ties with the last count."""
