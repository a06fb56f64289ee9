"""A run that is loaded and warmed up, and can be timed as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import thread_time
from typing import TypeAlias

from specdec_core.decoding import BatchResult, Metrics, PluginFailure, Prompt
from specdec_core.interface.errors import OutOfMemoryError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.registry import Registry
from specdec_core.study.config.study import Run
from specdec_core.study.report.quality import Output
from specdec_core.study.run.factory import make_decoder
from specdec_core.study.run.repeats import Repeat

_WARM_UP_TOKENS = 8

Batch: TypeAlias = tuple[Sequence[Prompt], Sequence[int]]
"""Prompts that are decoded together, and their seeds."""


@dataclass(frozen=True)
class RunJob:
    """The work of a run: its prompts and its settings.

    Attributes:
        task: Name of its task.
        run: Settings of the drafter and controllers.
        sampling: Sampling settings of the target.
        generation: Length limits and the seed.
        batches: The prompts, in the form that a decoder takes.
        batch_size: Number of prompts of a full batch.
        folder: Base for relative paths.
        plugin_timeout: Seconds that one call into a plugin may take; see `Decoder`.
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
    plugin_timeout: float | None = None
    halve: bool = False
    warmup: Sequence[Batch] = ()

    def same_task(self, other: RunJob) -> bool:
        """Return whether another run decodes the same, with the same settings."""
        return replace(self, run=other.run) == other


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
        self._decoder = make_decoder(
            target,
            job.run,
            registry=registry,
            sampling=job.sampling,
            folder=job.folder,
            plugin_timeout=job.plugin_timeout,
        )
        self._generation = job.generation
        constraint = job.generation.constraint
        if job.run.drafter is None and constraint is not None:
            # The baseline decodes token by token, as constrained decoding without drafts does.
            slow = constraint.model_copy(update={"fast_forward": False})
            self._generation = job.generation.model_copy(update={"constraint": slow})
        short = min(_WARM_UP_TOKENS, self._generation.max_new_tokens)
        for _ in self._decode(job.batches[0], self._generation.model_copy(update={"max_new_tokens": short})):
            pass

    def measure(self, number: int, progress: Callable[[float], None]) -> Repeat:
        """Decode all prompts once, after the drafter has forgotten what earlier repeats taught it.

        Args:
            number: Number of the repeat, from 1.
            progress: Called with the share that is done, between two batches.
        """
        job, metrics, cpu_seconds = self._job, Metrics(), 0.0
        failures: list[PluginFailure] = []
        notes: dict[str, None] = {}
        outputs: list[Output] = []
        seconds: list[float | None] = []
        drafter, gamma = self._decoder.drafter, self._decoder.gamma
        remembers = drafter is not None and drafter.remembers
        if drafter is not None:
            drafter.reset()
        for batch in job.warmup if remembers else ():
            for warm in self._decode(batch, self._generation):
                failures += warm.failures
                notes.update(dict.fromkeys(warm.notes))
        for done, batch in enumerate(job.batches):
            if done:
                progress(done / len(job.batches))
            before = thread_time()
            results = list(self._decode(batch, self._generation))
            cpu_seconds += thread_time() - before
            if len(results) > 1:
                notes[f"batches of {len(batch[0])} did not fit in memory; they were decoded in parts."] = None
            for result in results:
                metrics += result.metrics
                failures += result.failures
                notes.update(dict.fromkeys(result.notes))
                best = result.sequences[:: job.generation.num_return_sequences]
                outputs += [Output(one.tokens, one.text, one.metrics) for one in best]
                seconds += [one.seconds for one in best]
        return Repeat(
            *(job.task, job.run.name, number, metrics, tuple(failures), tuple(outputs)),
            request_seconds=tuple(seconds),
            device=describe_hardware(self._target),
            # Elsewhere the thread sleeps while the device computes.
            cpu_seconds=cpu_seconds if self._target.device.type == "cpu" else None,
            notes=tuple(notes),
            remembers=remembers,
            varies=gamma is not None and gamma.varies,
        )

    def _decode(self, batch: Batch, generation: GenerationSettings) -> Iterator[BatchResult]:
        """Decode a batch; where memory is short and the study allows it, in halves."""
        prompts, seeds = batch
        try:
            yield self._decoder.generate(prompts, generation, seeds=seeds)
            return
        except OutOfMemoryError:
            if not self._job.halve or len(prompts) == 1:
                raise
        # Outside of the handler, which holds what the batch has allocated.
        half = (len(prompts) + 1) // 2
        for part in (slice(half), slice(half, None)):
            yield from self._decode((prompts[part], seeds[part]), generation)
