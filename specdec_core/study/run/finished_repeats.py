"""The finished repeats of a study, in little memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import ConfigDict, PlainValidator

from specdec_core.costs.step_costs import NOISY
from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.decoding.guard import PluginFailure

RunKey: TypeAlias = tuple[str | None, str]
"""Names of a task and of a run."""
RepeatKey: TypeAlias = tuple[str | None, str, int]
"""Names of a task and of a run, and the number of a repeat, from 1."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a run for one prompt.

    Attributes:
        tokens: Ids of the new tokens; empty where an engine does not tell them.
        text: The decoded tokens; None without a tokenizer.
        metrics: Counts of the request; None with beams, and for recorded texts.
        count: Number of new tokens, where an engine does not tell their ids; else None.
        thinking: The index of the first token of its thinking part, and that behind the last; None without one.
        finish_reason: Why it ended, in our words or the engine's; None where that is not known. `context` without
            any token: its conversation had outgrown the target's context.
    """

    tokens: tuple[int, ...]
    text: str | None
    metrics: RequestMetrics | None = None
    count: int | None = None
    thinking: tuple[int, int] | None = None
    finish_reason: str | None = None

    @property
    def outgrown(self) -> bool:
        """Whether nothing was decoded, as the conversation had outgrown the target's context."""
        return self.finish_reason == "context" and not self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return len(self.tokens) if self.count is None else self.count

    def first_difference(self, other: "Output") -> int | None:
        """Return the first token that differs, or character where an engine tells no tokens; None if none does."""
        known = self.count is None and other.count is None
        ours, theirs = (self.tokens, other.tokens) if known else (self.text or "", other.text or "")
        if ours == theirs:
            return None
        pairs = enumerate(zip(ours, theirs, strict=False))
        return next((position for position, (a, b) in pairs if a != b), min(len(ours), len(theirs)))

    def same_as(self, other: "Output") -> bool:
        """Return whether two outputs have equal tokens, or texts where an engine tells no tokens."""
        return self.first_difference(other) is None


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
        by_prompt: What is expected for the texts of each prompt of a replay: tokens, forward passes of the target,
            accepted draft tokens, verified ones (those up to the first rejection of a draft), and seconds if the
            times of a machine are known; empty if it was decoded.
        remembers: Whether the drafter declares that it keeps knowledge between requests.
        varies: Whether the gamma controller declares that it may choose otherwise in another repeat.
        trace: The beginning of one output, as `TraceObserver.traces` returns it; `prompt` is the number of its
            prompt, from 0. It was decoded once more, and is in no other figure. None if there is none.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    task: str | None
    run: str
    repeat: int
    metrics: Annotated[Metrics, PlainValidator(Metrics.from_plain)]
    failures: tuple[PluginFailure, ...]
    outputs: tuple[Output, ...]
    request_seconds: tuple[float | None, ...] = ()
    device: str | None = None
    turn: int | None = None
    cpu_seconds: float | None = None
    notes: tuple[str, ...] = ()
    replayed: ReplayedOn | None = None
    by_prompt: tuple[tuple[float, ...], ...] = ()
    remembers: bool = False
    varies: bool = False
    trace: Mapping[str, Any] | None = None

    @property
    def key(self) -> RepeatKey:
        """Identifies the repeat within its study."""
        return self.task, self.run, self.repeat

    def without_times(self) -> Self:
        """Return the same repeat with no time measured."""
        trace = self.trace and {**self.trace, "steps": [{"items": step["items"]} for step in self.trace["steps"]]}
        untimed = self.metrics.without_times()
        return replace(self, metrics=untimed, request_seconds=(), cpu_seconds=None, trace=trace)

    def in_order(self, numbers: Sequence[int]) -> Self:
        """Return the repeat with outputs, times and trace in the order of the prompts.

        Args:
            numbers: The number of the prompt of each output, from 0.
        """
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        seconds = tuple(self.request_seconds[n] for n in order) if self.request_seconds else ()
        outputs = tuple(self.outputs[n] for n in order)
        trace = self.trace and {**self.trace, "prompt": numbers[self.trace["prompt"]]}
        return replace(self, outputs=outputs, request_seconds=seconds, trace=trace)


def outgrown(count: int) -> list[str]:
    """Return the note on turns that were not decoded, as their conversations had outgrown the context."""
    turns = f"{count} turns were" if count > 1 else "1 turn was"
    return [f"{turns} not decoded: the conversation no longer fits into the target's context."] if count else []


class Repeats(dict[RepeatKey, Repeat]):
    """Finished repeats by task, run and number.

    The repeats of a run have the same seeds, and so the same outputs. Equal ones are kept once, so that memory
    grows with the times that were measured, and little else.

    Args:
        repeats: The first ones.
    """

    def __init__(self, repeats: Iterable[Repeat] = ()) -> None:
        super().__init__()
        self._by_run = defaultdict[RunKey, dict[int, Repeat]](dict)
        self._shared: dict[Any, Any] = {}
        for repeat in repeats:
            self.add(repeat)

    def add(self, repeat: Repeat) -> None:
        """Add a repeat, or replace the one of the same name and number."""
        outputs = tuple(map(self._once, repeat.outputs))
        kept = replace(repeat, outputs=self._once(outputs))
        self[repeat.key] = self._by_run[repeat.task, repeat.run][repeat.repeat] = kept

    def of_run(self, task: str | None, run: str) -> Mapping[int, Repeat]:
        """Return the repeats of a run, by number."""
        return self._by_run.get((task, run), {})

    def _once(self, value: _Value) -> _Value:
        kept: _Value = self._shared.setdefault(value, value)
        return kept
