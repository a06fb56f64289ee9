"""The finished repeats of a study, in little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

from specdec_core.costs.step_costs import NOISY
from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.guard import PluginFailure
from specdec_core.study.report.quality import Output

RunKey: TypeAlias = tuple[str | None, str]
"""Names of a task and of a run."""
RepeatKey: TypeAlias = tuple[str | None, str, int]
"""Names of a task and of a run, and the number of a repeat, from 1."""
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ReplayedOn:
    """The record of a replayed run, and the certainty of its numbers.

    Intervals are 95% confidence intervals over texts of other prompts like these: texts are clustered by prompt,
    and those of a conversation together.

    Attributes:
        record: The record.
        texts: Number of its texts that were replayed.
        prompts: Number of their prompts; a conversation counts as one.
        tokens: Number of their tokens.
        machine: The machine whose seconds are expected; None if no seconds are known.
        low: Lower end of the interval of block efficiency; None with a single prompt.
        high: Its upper end.
        drawn: Standard error of block efficiency that is due to drawing what is accepted, for controllers of gamma
            that are replayed step by step; None where the expectation is exact.
        speedup_low: Lower end of the interval of the expected speed-up; None without seconds.
        speedup_high: Its upper end.
        speedup_by_gamma: The expected speed-up with gamma = 0, 1, ...; empty without seconds.
        noise: How well the seconds of a step are known, as a fraction; see `StepCosts.noise`.
            The intervals leave it out. None if it is not known, or without seconds.
    """

    record: str
    texts: int
    prompts: int
    tokens: int
    machine: str | None = None
    low: float | None = None
    high: float | None = None
    drawn: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_by_gamma: tuple[float, ...] = ()
    noise: float | None = None

    @property
    def noisy(self) -> bool:
        """Whether the seconds of a step are known too badly to tell runs apart that are nearly as fast."""
        return self.noise is not None and self.noise > NOISY


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """The expected counts of a replayed run for the texts of one prompt.

    Attributes:
        number: Number of the prompt, from 0.
        tokens: Tokens of its texts.
        steps: Forward passes of the target.
        accepted: Accepted draft tokens.
        verified: Verified draft tokens: those up to the first rejection of a draft.
        seconds: Seconds; None if no times of a machine are known.
    """

    number: int
    tokens: float
    steps: float
    accepted: float
    verified: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """One pass of a run over all prompts of a task.

    Attributes:
        task: Name of the task; None for the only task of a study without `tasks`.
        run: Name of the run.
        repeat: Number of the pass, from 1.
        metrics: Counts and times, summed over the batches.
        failures: Plugin failures, none of which cost a token.
        outputs: The output for each prompt.
        request_seconds: Wall time of each prompt, from the start of its batch to its last token; None with beams.
            Empty if nothing was timed.
        device: Device of the target; None in journals that do not record it.
        turn: Its position in the order in which the runs of its repeat were timed, from 1; None in journals that
            do not record it.
        cpu_seconds: CPU time of the decoding thread, to compare with the wall time; None unless the target is on
            a CPU.
        notes: Where plugins were overruled; see `BatchResult`.
        replayed: What it was replayed on, with expected metrics; None if it was decoded and timed.
        by_prompt: What is expected for each prompt of a replay; empty if it was decoded.
        remembers: Whether the drafter declares that it keeps knowledge between requests.
        varies: Whether the gamma controller declares that it may choose otherwise in another repeat.
        trace: The beginning of one output, as `TraceObserver.traces` returns it; `prompt` is the number of its
            prompt, from 0. It was decoded once more, and is in no other figure. None if there is none.
    """

    task: str | None
    run: str
    repeat: int
    metrics: Metrics
    failures: tuple[PluginFailure, ...]
    outputs: tuple[Output, ...]
    request_seconds: tuple[float | None, ...] = ()
    device: str | None = None
    turn: int | None = None
    cpu_seconds: float | None = None
    notes: tuple[str, ...] = ()
    replayed: ReplayedOn | None = None
    by_prompt: tuple[PromptCounts, ...] = ()
    remembers: bool = False
    varies: bool = False
    trace: Mapping[str, Any] | None = None

    @property
    def key(self) -> RepeatKey:
        """Identifies the repeat within its study."""
        return self.task, self.run, self.repeat

    def without_times(self) -> Repeat:
        """Return the same repeat with no time measured."""
        trace = self.trace and {**self.trace, "steps": [{"items": step["items"]} for step in self.trace["steps"]]}
        untimed = self.metrics.without_times()
        return replace(self, metrics=untimed, request_seconds=(), cpu_seconds=None, trace=trace)

    def in_order(self, numbers: Sequence[int]) -> Repeat:
        """Return the repeat with outputs, times and trace in the order of the prompts.

        Args:
            numbers: The number of the prompt of each output, from 0.
        """
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        seconds = tuple(self.request_seconds[n] for n in order) if self.request_seconds else ()
        outputs = tuple(self.outputs[n] for n in order)
        trace = self.trace and {**self.trace, "prompt": numbers[self.trace["prompt"]]}
        return replace(self, outputs=outputs, request_seconds=seconds, trace=trace)

    def to_plain(self) -> dict[str, Any]:
        """Return the repeat as plain data, which JSON can hold."""
        return asdict(self)

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> Repeat:
        """Return the repeat from the result of `to_plain`, also after a round trip through JSON.

        Raises:
            ValueError: If its counters are not those of this version.
        """
        parsed = {
            "metrics": Metrics.from_plain(entry["metrics"]),
            "failures": tuple(PluginFailure(**one) for one in entry["failures"]),
            "outputs": tuple(map(_output, entry["outputs"])),
            "request_seconds": tuple(entry["request_seconds"]),
            "notes": tuple(entry["notes"]),
            "replayed": _replayed(entry["replayed"]),
            "by_prompt": tuple(PromptCounts(**one) for one in entry["by_prompt"]),
        }
        return cls(**{**entry, **parsed})


def outgrown(count: int) -> list[str]:
    """Return the note on turns that were not decoded, as their conversations had outgrown the context."""
    turns = f"{count} turns were" if count > 1 else "1 turn was"
    return [f"{turns} not decoded: the conversation no longer fits into the target's context."] if count else []


def _output(plain: Mapping[str, Any]) -> Output:
    metrics = plain["metrics"]
    counts = None if metrics is None else RequestMetrics.from_plain(metrics)
    span = plain["thinking"]
    thinking = None if span is None else (span[0], span[1])
    ended = plain.get("finish_reason")
    return Output(tuple(plain["tokens"]), plain["text"], counts, plain["count"], thinking, ended)


def _replayed(plain: Mapping[str, Any] | None) -> ReplayedOn | None:
    if plain is None:
        return None
    return ReplayedOn(**{**plain, "speedup_by_gamma": tuple(plain["speedup_by_gamma"])})


class Repeats(Mapping[RepeatKey, Repeat]):
    """Finished repeats by task, run and number.

    The repeats of a run have the same seeds, and so the same outputs and counts, and a greedy run has the tokens
    of the baseline. What is equal is kept once, so that memory grows with the times that were measured, and
    little else.

    Args:
        repeats: The first ones.
    """

    def __init__(self, repeats: Iterable[Repeat] = ()) -> None:
        self._by_run: dict[RunKey, dict[int, Repeat]] = {}
        self._shared: dict[Any, Any] = {}
        for repeat in repeats:
            self.add(repeat)

    def add(self, repeat: Repeat) -> None:
        """Add a repeat, or replace the one of the same name and number."""
        key = (repeat.task, repeat.run)
        self._by_run.setdefault(key, {})[repeat.repeat] = self._compact(repeat)

    def of_run(self, task: str | None, run: str) -> Mapping[int, Repeat]:
        """Return the repeats of a run, by number."""
        return self._by_run.get((task, run), {})

    def __getitem__(self, key: RepeatKey) -> Repeat:
        return self._by_run[key[:2]][key[2]]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and key[2] in self._by_run.get(key[:2], ())

    def __iter__(self) -> Iterator[RepeatKey]:
        return ((*key, number) for key, numbers in self._by_run.items() for number in numbers)

    def __len__(self) -> int:
        return sum(map(len, self._by_run.values()))

    def _compact(self, repeat: Repeat) -> Repeat:
        return replace(
            repeat,
            metrics=repeat.metrics.sharing(self._once),
            outputs=self._once(tuple(map(self._output, repeat.outputs))),
            failures=self._once(repeat.failures),
            notes=self._once(repeat.notes),
            device=self._once(repeat.device),
        )

    def _output(self, output: Output) -> Output:
        known: Output | None = self._shared.get(output)
        if known:
            return known
        # Token ids too: those of a large vocabulary are four times the size of a reference to them.
        tokens = self._once(tuple(map(self._once, output.tokens)))
        shared = replace(output, tokens=tokens, text=self._once(output.text), metrics=self._once(output.metrics))
        return self._once(shared)

    def _once(self, value: _Value) -> _Value:
        kept: _Value = self._shared.setdefault(value, value)
        return kept
