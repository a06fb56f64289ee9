"""Controllers of gamma (how many tokens are drafted) and of lenience (how strictly drafts are verified)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from specdec_core.interface.drafter import Outcome
from specdec_core.interface.spec import PluginConfig
from specdec_core.interface.tree import TreeShape

TokenOrigin: TypeAlias = Literal["accepted", "recovered", "bonus", "forced"]
"""Where a token comes from: an accepted draft token, a sample from the residual after a rejection, a sample from
the target after a draft that was accepted in full (or after none), or a constraint that allows no other token."""

MAX_GAMMA = 1000
"""The largest gamma that a setting may have. Verifying so many tokens costs far more than any draft gains."""


@dataclass(frozen=True)
class BatchInfo:
    """What controllers know about a batch when it starts.

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


@dataclass(frozen=True)
class StepReport:
    """One step as controllers and observers see it; per-sequence fields hold B entries.

    Block efficiency, acceptance rate and cost coefficient are all derived from these raw numbers.

    Attributes:
        step: Number of the target forward pass, from 0.
        asked: The budget of each sequence; zeros if the drafter was not asked.
        outcome: What was drafted, accepted and committed.
        draft_tokens: The draft of each sequence, rejected tokens included.
        draft_seconds: Wall time of the drafter's `propose` and `commit`.
        verify_seconds: Wall time of the target's forward pass and the acceptance, up to the wait for the device.
        step_seconds: Wall time of the whole step.
        deviation: Total variation from the target's distribution that lenience cost in each sequence, summed over
            the verified positions: sum_x min(p / l, q) - min(p, q); 0 where l = 1. For greedy decoding, the number
            of accepted tokens that are not the argmax.
        forced: The positions in each sequence's `outcome.committed` of the tokens that a constraint forced, which
            nobody drafted; empty where there is no constraint.
    """

    step: int
    asked: tuple[int, ...]
    outcome: Outcome
    draft_tokens: tuple[tuple[int, ...], ...]
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    deviation: tuple[float, ...]
    forced: tuple[tuple[int, ...], ...] = ()

    @cached_property  # a controller may read it once for each row
    def verified(self) -> tuple[int, ...]:
        """Number of positions verified in each sequence: up to the first rejection, or the sequence's end.

        At a position of a tree there may be several draft tokens, of which at most one is accepted.
        """
        rows = zip(self.outcome.rejected, self.outcome.accepted, self.outcome.committed, strict=True)
        return tuple(accepted + int(rejected and len(new) > accepted) for rejected, accepted, new in rows)

    @cached_property
    def origins(self) -> tuple[tuple[TokenOrigin, ...], ...]:
        """Where each committed token of each sequence comes from."""
        rows = zip(self.outcome.rejected, self.outcome.accepted, self.outcome.committed, strict=True)
        origins = tuple(_origins(*row) for row in rows)
        if not any(self.forced):
            return origins
        forced: TokenOrigin = "forced"
        return tuple(
            tuple(forced if index in positions else origin for index, origin in enumerate(row))
            for row, positions in zip(origins, self.forced, strict=True)
        )

    @property
    def rejected_tokens(self) -> tuple[tuple[int, ...], ...]:
        """The draft tokens that were rejected in each sequence: one of a line, several of a tree, or none."""
        outcome = self.outcome
        if outcome.parents is None or outcome.paths is None:
            pairs = zip(self.draft_tokens, outcome.accepted, strict=True)
            return tuple(draft[accepted : accepted + 1] for draft, accepted in pairs)
        last = [path[-1] if path else -1 for path in outcome.paths]
        trees = zip(self.draft_tokens, outcome.parents, last, strict=True)
        return tuple(
            tuple(token for token, parent in zip(draft, parents, strict=True) if parent == end)
            for draft, parents, end in trees
        )

    @property
    def draft_calls(self) -> int:
        """Depth of the draft: the length of the longest one; 1 if the drafter was asked and proposed nothing."""
        return max(*self.outcome.depths, int(any(self.asked)))


def _origins(rejected: bool, accepted: int, committed: tuple[int, ...]) -> tuple[TokenOrigin, ...]:
    last: TokenOrigin = "recovered" if rejected else "bonus"
    kept: TokenOrigin = "accepted"
    return (kept,) * accepted + (last,) * (len(committed) - accepted)


class GammaSession(ABC):
    """A gamma controller's state for one batch."""

    uses_confidence: ClassVar[bool] = False
    """Set to True to be asked after each draft token. This synchronises the device after each draft token."""

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
    @abstractmethod
    def max_gamma(self) -> int:
        """The largest gamma it will ever ask for."""

    @abstractmethod
    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""


class FixedGammaConfig(PluginConfig):
    """The same number of draft tokens in every step.

    The number of tokens to draft.
    """

    gamma: Annotated[int, Field(ge=0, le=MAX_GAMMA, strict=True)] = 5
    """Number of tokens drafted in every step; 0 is autoregressive decoding."""


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
        return FixedGammaSession(self.max_gamma, batch.batch_size)


class FixedGammaSession(GammaSession):
    """One batch of which every sequence drafts the same number of tokens.

    Args:
        gamma: The number of tokens.
        batch_size: B.
        tree: The shape of every draft, if it is a tree.
    """

    def __init__(self, gamma: int, batch_size: int, tree: TreeShape | None = None) -> None:
        self._plan = tree or (gamma,) * batch_size

    def plan(self) -> Sequence[int] | TreeShape:
        """Return gamma for each sequence, or the tree."""
        return self._plan


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


class LenienceConfig(PluginConfig):
    """Base of the settings of lenience controllers."""

    @property
    def lossless(self) -> bool:
        """Whether l is always 1; a study with `lossless: true` accepts no other controller."""
        return False

    def lossless_for(self, *, greedy: bool) -> bool:  # noqa: ARG002  (for controllers that look at it)
        """Return whether l is always 1 in greedy decoding, or where the target samples."""
        return self.lossless


class LenienceController(ABC):
    """Chooses lenience, the factor l that q is multiplied with before the comparison (appendix A.5)."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
