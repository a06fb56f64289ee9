"""Counts and times of decoding: raw counters, from which all ratios are derived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import add
from typing import Any, TypeVar

from specdec_core.border import StepReport


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
        asked_at: Draft tokens asked for at each position of the draft, the first first.
        judged_at: Draft tokens judged at each position.
        accepted_at: Draft tokens kept at each position.
        deviation: Total variation from the target's distribution that lenience spent, summed over the rows.
        draft_calls: Depth of the drafts (the longest row; 1 where asked in vain), summed over the steps.
        seconds: Wall time.
        draft_seconds: Of which in the drafter.
        verify_seconds: Of which in the target's forward, the acceptance and the wait for both.
        times: Times of the steps whose longest draft had 0, 1, 2 ... tokens, the first of each batch left out.
        steps_asked: How many of these steps asked for 0, 1, 2 ... tokens, in the row that was asked for most.
    """

    tokens: int = 0
    target_calls: int = 0
    row_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    asked_at: tuple[int, ...] = ()
    judged_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    deviation: float = 0.0
    draft_calls: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    times: tuple[StepTimes, ...] = ()
    steps_asked: tuple[int, ...] = ()

    def __add__(self, other: Metrics) -> Metrics:
        return _added(self, other)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Metrics:
        """Return what `dataclasses.asdict` made plain, also where it went through JSON.

        Raises:
            ValueError: When counters are missing or unknown: another version counted something else.
        """
        known = {field.name for field in fields(cls)}
        if set(plain) != known:
            wrong = ", ".join(sorted(known.symmetric_difference(plain)))
            raise ValueError(f"these counters are missing, or are none of this version: {wrong}")
        values: dict[str, Any] = dict(plain)
        values.update({key: tuple(value) for key, value in plain.items() if isinstance(value, list)})
        values["times"] = tuple(StepTimes(**one) for one in plain["times"])
        return cls(**values)

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
        """Seconds to draft one token (of every row): the drafter's part of c (Definition 3.7).

        The first step of a batch, in which a drafter reads the prompt, is left out. Where the drafter was asked in
        vain, that counts as one token.
        """
        calls = sum(k * time.steps for k, time in enumerate(self.times))
        if self.times:
            calls += self.times[0].steps - self.steps_asked[0]
        return sum(time.draft_seconds for time in self.times) / calls if calls else None

    @property
    def verify_seconds_per_call(self) -> float | None:
        """Seconds of a target call without a draft or a prompt: of a plain run, the target's part of c, T(0)."""
        plain = self.times[0] if self.times else StepTimes()
        return plain.verify_seconds / plain.steps if plain.steps else None


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


class Tally:
    """Counts the steps of one batch as they happen: cheaply, for it runs in every step of the loop.

    Rows are counted by how many tokens they asked for, had judged and kept; what came to each position of a draft
    follows from that in the end.
    """

    def __init__(self) -> None:
        self.steps = 0
        """How many steps there were."""
        self._tokens = self._row_steps = self._draft_calls = 0
        self._deviation = 0.0
        self._asked, self._drafted, self._judged, self._accepted = (defaultdict[int, int](int) for _ in range(4))
        self._steps_asked = defaultdict[int, int](int)
        self._first = _Sums()
        self._times = defaultdict[int, _Sums](_Sums)

    def add(self, report: StepReport) -> None:
        """Count one step."""
        self.steps += 1
        for new in report.committed:
            self._tokens += len(new)
            self._row_steps += bool(new)
        rows = zip(report.asked, report.drafted, report.judged, report.accepted, strict=True)
        for asked, drafted, judged, accepted in rows:
            self._asked[asked] += 1
            self._drafted[drafted] += 1
            self._judged[judged] += 1
            self._accepted[accepted] += 1
        self._deviation += sum(report.deviation)
        self._draft_calls += report.draft_calls
        sums = self._first
        if report.step:
            self._steps_asked[max(report.asked)] += 1
            sums = self._times[max(report.drafted)]
        sums.steps += 1
        sums.draft_seconds += report.draft_seconds
        sums.verify_seconds += report.verify_seconds
        sums.seconds += report.step_seconds

    @property
    def metrics(self) -> Metrics:
        """All that was counted."""
        times = tuple(self._times[k].frozen() for k in range(_end(self._times)))
        whole = sum(times, self._first.frozen())
        accepted = _total(self._accepted)
        return Metrics(
            tokens=self._tokens,
            target_calls=self.steps,
            row_steps=self._row_steps,
            drafted=_total(self._drafted),
            accepted=accepted,
            rejected=_total(self._judged) - accepted,
            asked_at=_by_position(self._asked),
            judged_at=_by_position(self._judged),
            accepted_at=_by_position(self._accepted),
            deviation=self._deviation,
            draft_calls=self._draft_calls,
            seconds=whole.seconds,
            draft_seconds=whole.draft_seconds,
            verify_seconds=whole.verify_seconds,
            times=times,
            steps_asked=tuple(self._steps_asked[k] for k in range(_end(self._steps_asked))),
        )


@dataclass(slots=True)
class _Sums:
    """`StepTimes` while they grow."""

    steps: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def frozen(self) -> StepTimes:
        return StepTimes(self.steps, self.draft_seconds, self.verify_seconds, self.seconds)


def _end(counts: Mapping[int, object]) -> int:
    return max(counts, default=-1) + 1


def _total(counts: Mapping[int, int]) -> int:
    return sum(length * times for length, times in counts.items())


def _by_position(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return how many drafts reach each position, given how many have each length."""
    return tuple(sum(n for length, n in counts.items() if length >= place) for place in range(1, _end(counts)))
