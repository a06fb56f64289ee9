"""Controllers of gamma (how many tokens are drafted) and of lenience (how strictly drafts are verified)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specdec_core.interface.outcome import StepReport
from specdec_core.interface.spec import PluginConfig
from specdec_core.interface.tree import TreeShape

MAX_GAMMA = 1000
"""The largest gamma that a setting may have. Verifying so many tokens costs far more than any draft gains."""


@dataclass(frozen=True)
class BatchInfo:
    """Facts about a batch for controllers, when it starts.

    Attributes:
        batch_size: B.
        max_gamma: Maximum number of tokens drafted in a step; 0 without a drafter.
        room: Maximum number of new tokens of each sequence; inside a hierarchy, the maximum it may ever hold.
        greedy: Whether decoding is greedy, so that drafts are verified by comparing tokens.
    """

    batch_size: int
    max_gamma: int
    room: tuple[int, ...]
    greedy: bool


class GammaSession(ABC):
    """A gamma controller's state for one batch."""

    uses_confidence: ClassVar[bool] = False
    """Set to True to be asked after each draft token. This synchronizes the device after each draft token."""

    @abstractmethod
    def plan(self) -> Sequence[int] | TreeShape:
        """Return the number of tokens that each of the B sequences should draft next; 0 skips drafting.

        Return the shape of a tree instead to have every sequence draft one, of at most `max_gamma` nodes. Where a
        tree cannot be drafted or verified, a line as long as its longest path is drafted.
        """

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        """Return whether each sequence should draft another token.

        Args:
            confidence: q(x) of the token that each sequence has just drafted. For greedy drafts, where q is
                one-hot, the softmax probability before that (1 for tokens that an inner loop drew greedily). NaN
                for sequences that drafted none.
        """
        return [True] * len(confidence)

    def observe(self, report: StepReport) -> None:  # noqa: B027  (a fixed gamma learns nothing)
        """Learn the result of a step."""


class GammaController(ABC):
    """Chooses gamma, the number of tokens drafted in a step (section 3.5 of arXiv 2211.17192)."""

    varies: bool = False
    """Whether its choices depend on measured times or on earlier requests, so that it may choose otherwise when
    the same request is decoded again. A study then expects that counts differ between repeats."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def max_gamma(self) -> int:
        """The largest gamma it will ever ask for; the setting `max_gamma`, unless it is overridden."""
        return int(self.config.max_gamma)

    @abstractmethod
    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""


class FixedGammaConfig(PluginConfig):
    """The same number of draft tokens in every step.

    The number of tokens to draft.
    """

    gamma: Annotated[int, Field(ge=0, le=MAX_GAMMA, strict=True)] = 5
    """Number of tokens drafted in every step; 0 is plain decoding."""
    skip_first: bool = False
    """Draft nothing in the first step, which reads the prompt, as vLLM does."""


class FixedGamma(GammaController):
    """Drafts the same number of tokens in every step, as in the paper's experiments.

    References:
        Section 3.5 of arXiv 2211.17192; Figure 3 gives the best gamma for alpha and c.
    """

    @property
    def max_gamma(self) -> int:
        """The fixed gamma."""
        return int(self.config.gamma)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        first = 0 if self.config.skip_first else self.max_gamma
        return FixedGammaSession(self.max_gamma, batch.batch_size, first=first)


class FixedGammaSession(GammaSession):
    """One batch of which every sequence drafts the same number of tokens.

    Args:
        gamma: The number of tokens.
        batch_size: B.
        tree: The shape of every draft, if it is a tree.
        first: The number of tokens in the first step, if it is another.
    """

    def __init__(
        self, gamma: int, batch_size: int, tree: TreeShape | None = None, *, first: int | None = None
    ) -> None:
        self._plan: tuple[int, ...] | TreeShape = tree or (gamma,) * batch_size
        self._next = self._plan if first is None else (first,) * batch_size

    def plan(self) -> Sequence[int] | TreeShape:
        """Return gamma for each sequence, or the tree."""
        plan, self._next = self._next, self._plan
        return plan


class ScriptedGamma(GammaController):
    """Asks for what its caller says: to time, replay or check a drafter.

    Args:
        max_gamma: The longest draft.
        plan: Returns the plan of each step of a batch; see `GammaSession.plan`.
        keep_drafting: As `GammaSession.keep_drafting`; None to ask for no confidence.
    """

    def __init__(
        self,
        max_gamma: int,
        plan: Callable[[], Sequence[int] | TreeShape],
        keep_drafting: Callable[[Sequence[float]], Sequence[bool]] | None = None,
    ) -> None:
        super().__init__(PluginConfig())
        self._max_gamma, self.plan, self.keep_drafting = max_gamma, plan, keep_drafting

    @property
    def max_gamma(self) -> int:
        """The longest draft."""
        return self._max_gamma

    def open(self, batch: BatchInfo) -> GammaSession:  # noqa: ARG002
        """Start a batch."""
        return (_ScriptedSession if self.keep_drafting is None else _WatchingSession)(self)


class _ScriptedSession(GammaSession):
    def __init__(self, script: ScriptedGamma) -> None:
        self._script = script

    def plan(self) -> Sequence[int] | TreeShape:
        return self._script.plan()


class _WatchingSession(_ScriptedSession):
    uses_confidence = True

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        assert self._script.keep_drafting is not None
        return self._script.keep_drafting(confidence)


class LenienceSession(ABC):
    """A lenience controller's state for one batch."""

    @abstractmethod
    def lenience(self) -> Sequence[float | Sequence[float]]:
        """Return l in (0, 1] for each of the B sequences; 1 is lossless. Called once per verified draft.

        A sequence's l is one number for the whole draft or one per position, the last of which also holds for all
        later positions. It may depend on the reports of earlier steps, never on the draft it applies to.
        """

    def observe(self, report: StepReport) -> None:  # noqa: B027  (a constant learns nothing)
        """Learn the result of a step."""


class LenienceController(ABC):
    """Chooses lenience, the factor l that q is multiplied with before the comparison (appendix A.5)."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
