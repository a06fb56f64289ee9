"""Controllers: how many tokens to draft (gamma) and how strictly to judge them (lenience)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from specdec_core.border.spec import PluginConfig


@dataclass(frozen=True)
class BatchInfo:
    """What controllers may know of a batch before it begins.

    Attributes:
        batch_size: B.
        max_gamma: The most tokens drafted in a step; 0 without a drafter.
        room: The most new tokens of each row; within a hierarchy, the most it may ever hold.
        argmax: Whether the target's distributions are one-hot, so that drafts are judged by comparing tokens.
    """

    batch_size: int
    max_gamma: int
    room: tuple[int, ...]
    argmax: bool


@dataclass(frozen=True)
class StepReport:
    """One step as controllers and observers see it; B numbers each.

    Four raw counts from which the rest is derived (block efficiency, acceptance, cost coefficient).

    Attributes:
        step: Number of the target call, from 0.
        asked: Draft tokens the drafter was asked for at most, in each row.
        drafted: Draft tokens verified in each row.
        accepted: Draft tokens kept in each row.
        committed: The tokens appended to each row, recovered or bonus token last.
        finished: Whether each row has ended.
        draft_tokens: The draft of each row, rejected tokens included.
        draft_seconds: Wall time of the drafter's `propose` and `commit`.
        verify_seconds: Wall time of the target's forward, up to the wait for its result.
        step_seconds: Wall time of the whole step.
        deviation: Total variation from the target's distribution that lenience spent in each row: summed over
            the judged positions, sum_x min(p / l, q) - min(p, q); 0 where l = 1. For argmax, the kept tokens
            that are not the argmax.
    """

    step: int
    asked: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    draft_tokens: tuple[tuple[int, ...], ...]
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    deviation: tuple[float, ...]

    @property
    def judged(self) -> tuple[int, ...]:
        """How many draft tokens of each row were judged: those up to the first rejection, or the row's end."""
        rows = zip(self.drafted, self.accepted, self.committed, strict=True)
        return tuple(kept + int(kept < drafted and len(new) > kept) for drafted, kept, new in rows)

    @property
    def draft_calls(self) -> int:
        """How many tokens deep the draft went: the longest row; 1 where the drafter was asked in vain."""
        return max(*self.drafted, int(any(self.asked)))


class GammaSession(ABC):
    """A gamma controller while one batch is decoded."""

    watches_confidence: ClassVar[bool] = False
    """True to be asked after each drafted token; costs a wait for the device a token."""

    @abstractmethod
    def gamma(self) -> Sequence[int]:
        """Return how many tokens each of the B rows should draft next; 0 skips speculation."""

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        """Say which rows draft on.

        Args:
            confidence: q(x) of the token that each row has just drafted; where drafts are argmax, and q is
                one-hot, what it was before that (of tokens that a hierarchy drew so, 1). NaN in rows that have
                just drafted none.
        """
        return [True] * len(confidence)

    def observe(self, report: StepReport) -> None:  # noqa: B027  (a fixed gamma learns nothing)
        """Learn what became of a step."""


class GammaController(ABC):
    """Chooses gamma, the number of tokens drafted in a step (section 3.5 of arXiv 2211.17192)."""

    Config: ClassVar[type[PluginConfig]] = PluginConfig
    """The model of its settings."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""

    @abstractmethod
    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""


class LenienceSession(ABC):
    """A lenience controller while one batch is decoded."""

    @abstractmethod
    def lenience(self) -> Sequence[float | Sequence[float]]:
        """Return l in (0, 1] for each of the B rows; 1 is lossless. Asked once for every draft that is judged.

        A row's l is one number for the whole draft, or one for each position of it, the last of which holds for
        all positions behind. It may depend on what earlier steps reported, and not on the draft it judges.
        """

    def observe(self, report: StepReport) -> None:  # noqa: B027  (a constant learns nothing)
        """Learn what became of a step."""


class LenienceConfig(PluginConfig):
    """Base of the settings of lenience controllers."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1 whatever happens; a study that asks for losslessness takes no other."""
        return False


class LenienceController(ABC):
    """Chooses lenience, the factor l that q is multiplied with before the comparison (appendix A.5)."""

    Config: ClassVar[type[PluginConfig]] = PluginConfig
    """The model of its settings."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def open(self, batch: BatchInfo) -> LenienceSession:
        """Begin a batch."""
