"""Counts and times of decoding: raw numbers of each step, their sums, and the ratios derived from these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from operator import attrgetter
from time import perf_counter
from typing import Any, TypeVar

from specdec_core.interface import StepReport
from specdec_core.interface.outcome import TokenOrigin


@dataclass(slots=True)
class StepTimes:
    """Total times of the steps with one draft length; a batch's first step, which reads the prompt, is left out.

    Attributes:
        steps: Number of steps.
        draft_seconds: Seconds in the drafter.
        verify_seconds: Seconds in the target's forward pass and the acceptance, up to the wait for the device.
        seconds: Seconds in all.
    """

    steps: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return _total_of(StepTimes, [self, other])


@dataclass(frozen=True, slots=True)
class Metrics:
    """Raw counts and times of a run, from which all ratios are derived. Add two to combine runs.

    Attributes:
        tokens: New tokens of all sequences.
        target_calls: Forward passes of the target.
        row_steps: Sequences decoded in each forward pass, summed over the passes: `target_calls` at batch size 1.
        drafted: Draft tokens.
        accepted: Accepted draft tokens.
        rejected: Drafts cut short by a rejection.
        asked_at: Draft tokens asked for at each position of the draft.
        verified_at: Draft tokens verified at each position: up to the first rejection of a draft.
        accepted_at: Draft tokens accepted at each position.
        deviation: Total variation from the target's distribution that lenience cost, summed over the sequences.
        draft_calls: Depth of the drafts (see `StepReport.draft_calls`), summed over the steps.
        seconds: Wall time.
        draft_seconds: Seconds of it in the drafter.
        verify_seconds: Seconds of it in the target's forward pass and the acceptance.
        times: Times of the steps whose longest draft had 0, 1, 2 ... tokens; each batch's first step is left out.
        steps_asked: Number of these steps in which the largest budget of a sequence was 0, 1, 2 ... tokens.
        timed_draft_calls: `draft_calls` of these steps alone.
        tree_steps: Steps in which the draft was a tree. Its length is its number of nodes.
        forced: Tokens that a constraint forced, committed without being drafted.
    """

    tokens: int = 0
    target_calls: int = 0
    row_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    asked_at: tuple[int, ...] = ()
    verified_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    deviation: float = 0.0
    draft_calls: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    times: tuple[StepTimes, ...] = ()
    steps_asked: tuple[int, ...] = ()
    timed_draft_calls: int = 0
    tree_steps: int = 0
    forced: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics.total([self, other])

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f"acceptance rate {self.alpha:.2f}, "
        forced = f"{self.forced} tokens forced, " if self.forced else ""
        return (
            f"{self.tokens} tokens in {self.target_calls} target forward passes (block efficiency "
            f"{self.block_efficiency:.2f}), {alpha}{forced}{self.tokens_per_second:.1f} tokens/s"
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Metrics:
        """Return the metrics from the result of `dataclasses.asdict`, also after a round trip through JSON.

        Raises:
            ValueError: Counters are missing or unknown, because another version counted something else.
        """
        known = {field.name for field in fields(cls)}
        if set(plain) != known:
            wrong = ", ".join(sorted(known.symmetric_difference(plain)))
            raise ValueError(f"counters are missing or unknown in this version: {wrong}")
        values: dict[str, Any] = dict(plain)
        values.update({key: tuple(value) for key, value in plain.items() if isinstance(value, list)})
        values["times"] = tuple(StepTimes(**one) for one in plain["times"])
        return cls(**values)

    @classmethod
    def total(cls, parts: Iterable[Metrics]) -> Metrics:
        """Return the sum of any number of metrics."""
        return _total_of(cls, list(parts))

    def with_seconds(self, seconds: float) -> Metrics:
        """Return the same counts with another wall time: that of the whole call, set-up included."""
        return replace(self, seconds=seconds)

    def without_times(self) -> Metrics:
        """Return the same counts with no time measured."""
        steps = tuple(StepTimes(time.steps) for time in self.times)
        return replace(self, seconds=0.0, draft_seconds=0.0, verify_seconds=0.0, times=steps)

    @property
    def block_efficiency(self) -> float:
        """Tokens per step and sequence, recovered and bonus tokens included; 1 for autoregressive decoding."""
        return self.tokens / self.row_steps if self.row_steps else 0.0

    @property
    def alpha(self) -> float | None:
        """Acceptance rate E(beta): accepted over verified draft tokens (those up to the first rejection)."""
        verified = self.accepted + self.rejected
        return self.accepted / verified if verified else None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences per second of wall time."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def draft_seconds_per_call(self) -> float | None:
        """Seconds to draft one token, or one level of a tree, of every sequence: c times T(0) (Definition 3.7).

        The first step of a batch, in which the drafter reads the prompt, is left out. A step in which the drafter
        was asked and proposed nothing counts as one token.
        """
        calls = self.timed_draft_calls
        return sum(time.draft_seconds for time in self.times) / calls if calls else None

    @property
    def verify_seconds_per_call(self) -> float | None:
        """Seconds of a target forward pass without draft or prompt: in a baseline run, the denominator of c."""
        plain = self.times[0] if self.times else StepTimes()
        return plain.verify_seconds / plain.steps if plain.steps else None


_Counts = TypeVar("_Counts", Metrics, StepTimes)


def _total_of(kind: type[_Counts], parts: Sequence[_Counts]) -> _Counts:
    """Add counts field by field; tuples element by element, padded with zeros."""
    return kind(*map(_sum, zip(*map(_VALUES[kind], parts), strict=True)))


_VALUES = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in (Metrics, StepTimes)}


def _sum(values: Sequence[Any]) -> Any:
    first = values[0]
    if not isinstance(first, tuple):
        return _total_of(StepTimes, values) if isinstance(first, StepTimes) else sum(values)
    times = any(value and isinstance(value[0], StepTimes) for value in values)
    return tuple(map(_sum, zip_longest(*values, fillvalue=StepTimes() if times else 0)))


_STEPS = ("per_step_accepted", "per_step_drafted")
"""Of `metrics.speculative_decoding` in a detailed response."""
_FIGURES = (
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "acceptance_histogram_by_draft_length",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Raw counts of one sequence, from which its figures are derived. `Metrics` has the sums over a batch.

    The figures have the names and the meaning of `metrics.speculative_decoding` in a response of vLLM: steps
    without a draft are left out. Draft tokens behind the end of the text count as drafted, not as accepted. The
    nodes of a tree are its draft tokens, and those of the accepted path are accepted. A request without any draft
    has a mean acceptance length of 1 and a draft acceptance rate of 0.

    Attributes:
        num_spec_tokens: The longest draft that the gamma controller may ask for; 0 without a drafter.
        steps: Forward passes of the target in which the sequence was decoded, with a draft or without.
        per_step_drafted: Draft tokens of each step with a draft, in order.
        per_step_accepted: Accepted draft tokens of the same steps.
        rejected: Drafts cut short by a rejection; None where an engine does not say.
        per_step_begin: The index of the first new token that each of the steps with a draft committed; empty where
            an engine does not say.

    References:
        vLLM's documentation of `--per-request-spec-decode-metrics`.
    """

    num_spec_tokens: int
    steps: int
    per_step_drafted: tuple[int, ...] = ()
    per_step_accepted: tuple[int, ...] = ()
    rejected: int | None = None
    per_step_begin: tuple[int, ...] = ()

    def split(self, begin: int, end: int) -> tuple[RequestMetrics, RequestMetrics]:
        """Return the counts of the steps with a draft that began within some tokens, and of the others.

        Args:
            begin: The index of the first of these tokens among the new ones.
            end: The index behind the last.
        """
        steps = list(zip(self.per_step_begin, self.per_step_drafted, self.per_step_accepted, strict=True))
        inside = [one for one in steps if begin <= one[0] < end]
        outside = [one for one in steps if not begin <= one[0] < end]
        return self._of(inside), self._of(outside)

    def _of(self, steps: Sequence[tuple[int, int, int]]) -> RequestMetrics:
        begins, drafted, accepted = (tuple(one[n] for one in steps) for n in range(3))
        return RequestMetrics(self.num_spec_tokens, len(steps), drafted, accepted, per_step_begin=begins)

    def to_plain(self, *, detailed: bool = False) -> dict[str, Any]:
        """Return the figures by vLLM's names, as JSON can hold them.

        Args:
            detailed: Add `per_step_accepted` and `per_step_drafted`, which grow with the number of steps.
        """
        plain = {name: getattr(self, name) for name in _FIGURES}
        return plain | ({name: list(getattr(self, name)) for name in _STEPS} if detailed else {})

    @property
    def num_spec_steps(self) -> int:
        """Number of steps with a draft."""
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        """Number of draft tokens."""
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Number of accepted draft tokens."""
        return sum(self.per_step_accepted)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a step with a draft, with the recovered or bonus token: 1 + accepted / steps."""
        return 1 + self.num_accepted_draft_tokens / (self.num_spec_steps or 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens. The acceptance rate alpha leaves out those behind the first rejection."""
        return self.num_accepted_draft_tokens / (self.num_draft_tokens or 1)

    @property
    def acceptance_histogram(self) -> list[int]:
        """The number of steps with a draft that accepted 0, 1, ... `num_spec_tokens` draft tokens."""
        return _histogram(self.per_step_accepted, self.num_spec_tokens)

    @property
    def acceptance_histogram_by_draft_length(self) -> dict[str, list[int]]:
        """The number of steps that accepted 0, 1, ... k draft tokens, by the length k of the draft."""
        pairs = list(zip(self.per_step_drafted, self.per_step_accepted, strict=True))
        return {
            str(length): _histogram([accepted for drafted, accepted in pairs if drafted == length], length)
            for length in sorted(set(self.per_step_drafted))
        }


class Tally:
    """Counts the steps of one batch: their sums, and the steps of each sequence.

    It keeps histograms of the draft lengths asked for, verified and accepted; counts by position come last.

    Args:
        rows: Number of sequences.
        longest: The longest draft that the gamma controller may ask for.
        began: When the call began, of `perf_counter`.

    Attributes:
        steps: Number of steps.
        origins: Where each new token of each sequence comes from.
        seconds: Wall time until the last token of each sequence.
    """

    def __init__(self, rows: int, longest: int = 0, began: float | None = None) -> None:
        self.steps = 0
        self._longest = longest
        # Of each step of each sequence: the index of its first new token, drafted, accepted and verified tokens.
        self._rows: tuple[list[tuple[int, int, int, int]], ...] = tuple([] for _ in range(rows))
        self.origins: tuple[list[TokenOrigin], ...] = tuple([] for _ in range(rows))
        self.seconds = [0.0] * rows
        self._began = perf_counter() if began is None else began
        self._asked, self._verified = defaultdict[int, int](int), defaultdict[int, int](int)
        self._drafted, self._accepted = defaultdict[int, int](int), defaultdict[int, int](int)
        self._draft_calls = self._timed_draft_calls = self._tree_steps = self._forced = 0
        self._deviation = 0.0
        self._steps_asked = defaultdict[int, int](int)
        self._first = StepTimes()
        self._times = defaultdict[int, StepTimes](StepTimes)

    def add(self, report: StepReport) -> None:
        """Count one step."""
        self.steps += 1
        now = perf_counter() - self._began
        outcome = report.outcome
        rows = zip(report.asked, outcome.drafted, report.verified, outcome.accepted, report.origins, strict=True)
        for row, (asked, drafted, verified, accepted, origins) in enumerate(rows):
            self._asked[asked] += 1
            self._drafted[drafted] += 1
            self._verified[verified] += 1
            self._accepted[accepted] += 1
            if origins:  # it had not ended
                self._rows[row].append((len(self.origins[row]), drafted, accepted, verified))
                self.origins[row].extend(origins)
                self.seconds[row] = now
        self._deviation += sum(report.deviation)
        self._draft_calls += (calls := report.draft_calls)
        self._tree_steps += outcome.parents is not None
        self._forced += sum(map(len, report.forced))
        times = self._first
        if report.step:
            self._timed_draft_calls += calls
            self._steps_asked[max(report.asked)] += 1
            times = self._times[max(outcome.drafted)]
        times.steps += 1
        times.draft_seconds += report.draft_seconds
        times.verify_seconds += report.verify_seconds
        times.seconds += report.step_seconds

    @property
    def requests(self) -> tuple[RequestMetrics, ...]:
        """The counts of each sequence so far."""
        made = []
        for steps in self._rows:
            drafts = [step for step in steps if step[1]]
            begins, drafted, accepted, verified = (tuple(step[n] for step in drafts) for n in range(4))
            rejected = sum(verified) - sum(accepted)
            made.append(RequestMetrics(self._longest, len(steps), drafted, accepted, rejected, begins))
        return tuple(made)

    @property
    def metrics(self) -> Metrics:
        """The sums so far."""
        times = tuple(replace(self._times[k]) for k in range(_end(self._times)))
        whole = _total_of(StepTimes, [self._first, *times])
        accepted = _total(self._accepted)
        return Metrics(
            tokens=sum(map(len, self.origins)),
            target_calls=self.steps,
            row_steps=sum(map(len, self._rows)),
            drafted=_total(self._drafted),
            accepted=accepted,
            rejected=_total(self._verified) - accepted,
            asked_at=by_position(self._asked),
            verified_at=by_position(self._verified),
            accepted_at=by_position(self._accepted),
            deviation=self._deviation,
            draft_calls=self._draft_calls,
            seconds=whole.seconds,
            draft_seconds=whole.draft_seconds,
            verify_seconds=whole.verify_seconds,
            times=times,
            steps_asked=tuple(self._steps_asked[k] for k in range(_end(self._steps_asked))),
            timed_draft_calls=self._timed_draft_calls,
            tree_steps=self._tree_steps,
            forced=self._forced,
        )


def _end(counts: Mapping[int, object]) -> int:
    return max(counts, default=-1) + 1


def _total(counts: Mapping[int, int]) -> int:
    return sum(length * times for length, times in counts.items())


def by_position(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return the number of drafts that reach each position, given the number of each length."""
    return tuple(
        sum(n for length, n in counts.items() if length >= position) for position in range(1, _end(counts))
    )


def _histogram(values: Iterable[int], longest: int) -> list[int]:
    counts = [0] * (longest + 1)
    for value in values:
        counts[value] += 1
    return counts
