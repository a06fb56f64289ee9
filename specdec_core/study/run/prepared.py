"""A run that is loaded and warmed up, and can be timed as often as asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple, TypeAlias

from specdec_core.decoding.chat import Conversations, answers, thinking_marks, thinking_span
from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.guard import PluginFailure
from specdec_core.decoding.observers import TraceObserver
from specdec_core.decoding.result import BatchResult, Generation
from specdec_core.interface.errors import OutOfMemoryError, SpecdecError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.registry.registry import Registry
from specdec_core.study.config.prompts import ReadyPrompt
from specdec_core.study.config.study import Run
from specdec_core.study.run.factory import make_decoder
from specdec_core.study.run.finished_repeats import Output, Repeat, outgrown

_WARM_UP_TOKENS, _TRACED_TOKENS = 8, 24


class Batch(NamedTuple):
    """Conversations that are decoded together.

    Attributes:
        talks: The turns of each, most often one.
        seeds: A seed for each turn.
        metadata: That of each conversation.
    """

    talks: Sequence[Sequence[ReadyPrompt]]
    seeds: Sequence[Sequence[int]]
    metadata: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunJob:
    """The work of a run: its prompts and its settings.

    Attributes:
        task: Name of its task.
        run: Settings of the drafter and controllers.
        sampling: Sampling settings of the target.
        generation: Length limits and the seed.
        batches: The prompts, in the form that a decoder takes.
        batch_size: Number of conversations of a full batch.
        folder: Base for relative paths.
        halve: Decode a batch in halves where memory is short.
        warmup: What a drafter that remembers decodes before the prompts of each repeat.
    """

    task: str | None
    run: Run
    sampling: SamplingSettings
    generation: GenerationSettings
    batches: Sequence[Batch]
    batch_size: int
    folder: Path
    halve: bool = False
    warmup: Sequence[Batch] = ()


class PreparedRun:
    """A run in this process.

    Args:
        target: The loaded target.
        job: What to decode, and how.
        registry: Where plugins come from.

    Raises:
        SpecdecError: If a plugin cannot be loaded, or the target cannot decode.
    """

    def __init__(self, target: LoadedModel, job: RunJob, registry: Registry) -> None:
        self._target = target
        self._job = job
        self._new_decoder = partial(
            make_decoder,
            target,
            job.run,
            registry=registry,
            sampling=job.sampling,
            folder=job.folder,
        )
        self._decoder = self._new_decoder()
        self._generation = job.generation
        constraint = job.generation.constraint
        if job.run.drafter is None and constraint is not None:
            # The baseline decodes token by token, as constrained decoding without drafts does.
            slow = constraint.model_copy(update={"fast_forward": False})
            self._generation = job.generation.model_copy(update={"constraint": slow})
        first = job.batches[0]._replace(talks=[turns[:1] for turns in job.batches[0].talks])
        for _ in self._decode(first, self._generation.shortened(_WARM_UP_TOKENS)):
            pass

    def measure(self, number: int, progress: Callable[[float], None]) -> Repeat:
        """Decode all prompts once, after the drafter has forgotten what earlier repeats taught it.

        Args:
            number: Number of the repeat, from 1.
            progress: Called with the share that is done, between two batches.
        """
        job, metrics, cpu_seconds = self._job, Metrics(), 0.0
        marks = thinking_marks(self._target.tokenizer)
        failures: list[PluginFailure] = []
        notes: dict[str, None] = {}
        outputs: list[Output] = []
        seconds: list[float | None] = []
        drafter, gamma = self._decoder.drafter, self._decoder.gamma
        remembers = drafter is not None and drafter.remembers
        if drafter is not None:
            drafter.reset()
        for batch in job.warmup if remembers else ():
            for _, warm in chain(*self._decode(batch, self._generation)):
                failures += warm.failures
                notes.update(dict.fromkeys(warm.notes))
        for done, batch in enumerate(job.batches):
            if done:
                progress(done / len(job.batches))
            before = thread_time()
            parts = list(self._decode(batch, self._generation))
            cpu_seconds += thread_time() - before
            if len(parts) > 1:
                notes[f"batches of {len(batch.talks)} did not fit in memory; they were decoded in parts."] = None
            for _, result in chain(*parts):
                metrics += result.metrics
                failures += result.failures
                notes.update(dict.fromkeys(result.notes))
            for one in chain(*(_in_order(turns, job.generation.num_return_sequences) for turns in parts)):
                thinking = None if marks is None else thinking_span(one.prompt, one.tokens, marks)
                ended = one.finish_reason
                outputs.append(Output(one.tokens, one.text, one.metrics, thinking=thinking, finish_reason=ended))
                seconds.append(one.seconds)
        notes.update(dict.fromkeys(outgrown(sum(one.outgrown for one in outputs))))
        trace = None
        if number == 1:
            try:
                trace = self._trace()
            except SpecdecError as error:
                notes[f"the report has no trace: {error}"] = None
        return Repeat(
            *(job.task, job.run.name, number, metrics, tuple(failures), tuple(outputs)),
            request_seconds=tuple(seconds),
            device=describe_hardware(self._target),
            # Elsewhere the thread sleeps while the device computes.
            cpu_seconds=cpu_seconds if self._target.device.type == "cpu" else None,
            notes=tuple(notes),
            remembers=remembers,
            varies=gamma is not None and gamma.varies,
            trace=trace,
        )

    def _trace(self) -> dict[str, Any] | None:
        """Decode the first tokens of the first prompt again, untimed, and return the trace.

        The drafter knows what it knew when this prompt was decoded, unless it decoded others to warm up.
        Controllers are new, so that those of the run do not learn from it. None if nothing drafts, for beam
        search, and where the prompt has no answer.
        """
        drafter = self._decoder.drafter
        if drafter is None or self._generation.beams > 1:
            return None
        drafter.reset()
        prompts, seeds, metadata = self._job.batches[0]
        observer = TraceObserver(probabilities=True)
        short = self._generation.shortened(_TRACED_TOKENS)
        with closing(Conversations(self._new_decoder(drafter=drafter), 1, metadata[0])) as talk:
            for _ in talk.stream([prompts[0][0]], short, [observer], seeds=[seeds[0][0]]):
                pass
        return {"prompt": 0, **observer.traces()[0]} if observer.reports else None

    def _decode(self, batch: Batch, generation: GenerationSettings) -> "Iterator[_Turns]":
        """Decode a batch; where memory is short and the study allows it, in halves."""
        talks, seeds, metadata = batch
        try:
            turns = list(answers(self._decoder, talks, generation, seeds=seeds, metadata=metadata))
        except OutOfMemoryError:
            if not self._job.halve or len(talks) == 1:
                raise
        else:
            yield turns
            return
        # Outside of the handler, which holds what the batch has allocated.
        half = (len(talks) + 1) // 2
        for part in (slice(half), slice(half, None)):
            yield from self._decode(Batch(talks[part], seeds[part], metadata[part]), generation)


_Turns: TypeAlias = Sequence[tuple[Sequence[int], BatchResult]]
"""The result of each turn, and the conversations whose turn it is."""


def _in_order(turns: _Turns, returned: int) -> Iterator[Generation]:
    """Yield the best answers of one conversation after the other."""
    found: dict[int, list[Generation]] = {}
    for going, result in turns:
        for number, best in zip(going, result.sequences[::returned], strict=True):
            found.setdefault(number, []).append(best)
    return (one for number in sorted(found) for one in found[number])
