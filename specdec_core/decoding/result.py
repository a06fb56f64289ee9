"""What decoding gives back: tokens, text, counts and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import add
from typing import Any, TypeVar

from specdec_core.border import StepReport
from specdec_core.decoding.stopping import FinishReason


@dataclass(frozen=True)
class Generation:
    """One finished sequence.

    Attributes:
        prompt: The token ids it began with (for encoder-decoder targets the source).
        tokens: The new token ids.
        text: The new tokens decoded, or None without a tokenizer.
        finish_reason: Why it ended.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason


@dataclass(frozen=True)
class PluginFailure:
    """What a plugin did wrong during decoding; no token was lost.

    Attributes:
        plugin: Its class.
        step: The target call at which it first happened.
        message: What it did.
        times: How often.
    """

    plugin: str
    step: int
    message: str
    times: int = 1


@dataclass(frozen=True)
class StepTimes:
    """What steps of one length of draft took together, in seconds; the first of a batch, with its prompt, is none.

    Attributes:
        steps: How many there were.
        draft_seconds: In the drafter.
        verify_seconds: In the target's forward, the acceptance and the wait for both.
        seconds: In all.
    """

    steps: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return _added(self, other)


@dataclass(frozen=True)
class Metrics:
    """Raw counts and times of a run, from which all ratios are derived; two of them add up.

    Attributes:
        tokens: New tokens of all rows.
        target_calls: Forwards of the target.
        row_steps: Rows that were decoded, summed over the forwards: `target_calls` at batch 1.
        drafted: Draft tokens verified.
        accepted: Draft tokens kept.
        rejected: Rows whose draft was cut by a rejection, summed over the steps.
        judged_at: Draft tokens judged at each position of the draft, the first first.
        accepted_at: Draft tokens kept at each position.
        deviation: Total variation from the target's distribution that lenience spent, summed over the rows.
        draft_calls: Depth of the drafts (the longest row; 1 where asked in vain), summed over the steps.
        seconds: Wall time.
        draft_seconds: Of which in the drafter.
        verify_seconds: Of which in the target's forward, the acceptance and the wait for both.
        times: Times of the steps whose longest draft had 0, 1, 2 ... tokens.
    """

    tokens: int = 0
    target_calls: int = 0
    row_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    judged_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    deviation: float = 0.0
    draft_calls: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    times: tuple[StepTimes, ...] = ()

    def __add__(self, other: Metrics) -> Metrics:
        return _added(self, other)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Metrics:
        """Return what `dataclasses.asdict` made plain, also where it went through JSON."""
        lists = {key: tuple(plain[key]) for key in ("judged_at", "accepted_at")}
        times = tuple(StepTimes(**one) for one in plain["times"])
        return cls(**{**plain, **lists, "times": times})

    @classmethod
    def of_step(cls, report: StepReport) -> Metrics:
        """Return the counts of one step."""
        judged = report.judged
        longest = max(report.drafted)
        own = StepTimes(1, report.draft_seconds, report.verify_seconds, report.step_seconds)
        return cls(
            tokens=sum(len(row) for row in report.committed),
            target_calls=1,
            row_steps=sum(1 for row in report.committed if row),
            drafted=sum(report.drafted),
            accepted=sum(report.accepted),
            rejected=sum(judged) - sum(report.accepted),
            judged_at=_by_position(judged),
            accepted_at=_by_position(report.accepted),
            deviation=sum(report.deviation),
            draft_calls=report.draft_calls,
            seconds=report.step_seconds,
            draft_seconds=report.draft_seconds,
            verify_seconds=report.verify_seconds,
            times=(*(StepTimes() for _ in range(longest)), own) if report.step else (),
        )

    def with_seconds(self, seconds: float) -> Metrics:
        """Return the same counts with another wall time: that of the whole call, set-up included."""
        return replace(self, seconds=seconds)

    @property
    def block_efficiency(self) -> float:
        """Tokens a target call and row, recovered and bonus tokens included; plain decoding has 1."""
        return self.tokens / self.row_steps if self.row_steps else 0.0

    @property
    def alpha(self) -> float | None:
        """Acceptance rate E(beta): kept draft tokens over judged ones (those up to the first rejection)."""
        judged = self.accepted + self.rejected
        return self.accepted / judged if judged else None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows a second of wall time."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def draft_seconds_per_call(self) -> float | None:
        """Seconds to draft one token (of every row): the drafter's part of c (Definition 3.7)."""
        return self.draft_seconds / self.draft_calls if self.draft_calls else None

    @property
    def verify_seconds_per_call(self) -> float | None:
        """Seconds of one target call; of a plain run, the target's part of c (Definition 3.7)."""
        return self.verify_seconds / self.target_calls if self.target_calls else None


def _by_position(counts: Sequence[int]) -> tuple[int, ...]:
    """Return how many rows reach each position, given how many positions each row reaches."""
    return tuple(sum(count > place for count in counts) for place in range(max(counts)))


_Counts = TypeVar("_Counts", Metrics, StepTimes)


def _added(one: _Counts, other: _Counts) -> _Counts:
    """Add two sets of counts, field by field; tuples place by place, the longer one going on alone."""
    pairs = {name.name: (getattr(one, name.name), getattr(other, name.name)) for name in fields(one)}
    return type(one)(**{name: _sum(left, right) for name, (left, right) in pairs.items()})


def _sum(left: Any, right: Any) -> Any:
    if not isinstance(left, tuple):
        return left + right
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return tuple(map(add, longer, shorter)) + longer[len(shorter) :]


@dataclass(frozen=True)
class BatchResult:
    """The result of one call.

    Attributes:
        rows: The sequences, in the order of the prompts.
        metrics: Counts and times.
        failures: What plugins did wrong on the way.
    """

    rows: tuple[Generation, ...]
    metrics: Metrics
    failures: tuple[PluginFailure, ...] = ()
