"""Acceptance rules: which draft tokens are accepted, and which token follows them.

An *accepted* token is a draft token that is committed; a *recovered* token replaces the first one that is
rejected; a *bonus* token follows when all were accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from specdec_core.interface.spec import LosslessAt, RuleConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from specdec_core.interface.proposal import Proposal


@dataclass(frozen=True)
class AcceptanceResult:
    """The result of verifying one draft.

    Attributes:
        accepted: `[B]` int64, n: the number of accepted draft tokens of each sequence.
        token: `[B]` int64, the recovered token (n < length) or the bonus token (n = length).
        sound: `[B]` bool, False where the token could not be drawn because the distribution holds NaN.
        deviation: `[B, K]` float, the total variation from p that lenience or a lossy rule costs at each position
            if it is verified; None where it costs none.
        path: `[B, K]` int64 for trees, the numbers of the accepted draft tokens from the root on, padded with 0;
            None for lines, of which the first n are accepted.
    """

    accepted: Tensor
    token: Tensor
    sound: Tensor
    deviation: Tensor | None = None
    path: Tensor | None = None


class AcceptanceRule(ABC):
    """Decides which draft tokens are accepted and which token follows.

    A rule is a pure function of its arguments, which it does not modify: no state, no random generator. What
    it decides for a sequence depends on that sequence's row alone, and not on anything beyond the row's length.

    Args:
        config: Its validated settings.
    """

    trees: ClassVar[bool] = False
    """Whether it verifies token trees (`proposal.parents`), where column k + 1 of p and of the scores is after
    node k."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """Verify a draft where the target samples.

        Args:
            proposal: Draft tokens `[B, K]`, lengths, and q in any form. K may be 0.
            p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
            lenience: `[B]` or `[B, K]` float, l in (0, 1] of each sequence or of each position; None for 1. Always
                None for a rule that takes none.
            uniforms: `[B, K + 1]` float64 in [0, 1): r_1 ... r_K, then the number that draws the next token.
        """

    @abstractmethod
    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Verify a draft where the target decodes greedily.

        Args:
            proposal: Draft tokens `[B, K]` and lengths. K may be 0.
            scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
            lenience: As for `sample`.
        """

    def acceptance_given_text(
        self,
        ratio: NDArray[np.float64],
        least: NDArray[np.float64] | None,  # noqa: ARG002  (of all tokens)
    ) -> NDArray[np.float64]:
        """Return the probability that each draft token was accepted, given the text that was emitted.

        This is what a replay takes from the rule where `Config.replays_from` is set and the target samples. The
        default is that of Algorithm 1, min(1, q(y) / p(y)).

        Args:
            ratio: `[..., K]` float64, q(y) / p(y) of the K tokens y of the text that follow where the draft began.
            least: `[..., K]` float64, the smallest q(x) / p(x) of all tokens x that p does not exclude there; None
                unless `Config.replays_from` is `all`.

        Returns:
            `[..., K]` float64: the probability that each draft token was accepted, given the text and that those
            before it were.
        """
        return ratio.clip(max=1.0)


class TokenRuleConfig(RuleConfig):
    """Token by token: Algorithm 1 of the paper, the default; lossless."""

    takes_lenience: ClassVar[bool] = True
    replays_from: ClassVar[Literal["token", "all"] | None] = "token"

    @property
    def lossless_at(self) -> LosslessAt:
        """Always (appendix A.1)."""
        return "always"
