"""The jobs of a recording: each decodes some batches, and the study's process writes the shards."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specdec_core.interface.files import writing_file
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.record.decode import Kept, TextJob, record_texts
from specdec_core.offline.record.format import PartHeader, RecordedText, RecordHeader, VerifyTimes
from specdec_core.offline.record.outline import Outline, RecordOptions, outline_of, verify_times
from specdec_core.offline.record.reader import FEATURES
from specdec_core.offline.record.recorded_target import save_features
from specdec_core.study.config.study import Task
from specdec_core.study.run.worker import TargetJob, TargetJobs, worker

_JOBS_EACH = 4
"""Number of jobs for each worker, so that none waits long for the last one."""
_BATCHES = 16
"""The most batches of a job: what is decoded again if its worker dies."""


class RecordedTarget:
    """The target of a recording.

    Args:
        jobs: Run what is asked of it.
    """

    def __init__(self, jobs: TargetJobs) -> None:
        self._jobs = jobs

    def outline(self, tasks: Sequence[Task], options: RecordOptions) -> Outline:
        """Load the target; return the outline of the record of some tasks."""
        found: Outline = self._jobs.ask(_outline, [replace(task, runs=()) for task in tasks], options)
        return found

    def save_features(self, path: Path, header: RecordHeader) -> None:
        """Write the target's embeddings into the folder of a record."""
        content: bytes = self._jobs.ask(_features, header)
        with writing_file(path / FEATURES) as temporary:
            temporary.write_bytes(content)

    def texts(
        self, task: Task, kept: Kept, jobs: Sequence[TextJob], advance: Callable[[float], None]
    ) -> Generator[Sequence[RecordedText], None, None]:
        """Yield the texts of each job, in order; workers decode them side by side.

        Args:
            task: The task.
            kept: What is kept of each token.
            jobs: What to decode.
            advance: Called with the share of a job that is done, where this process decodes.
        """
        worker().advance = advance
        workers = self._jobs.workers
        size = 1 if workers == 1 else min(_BATCHES, -(-len(jobs) // (_JOBS_EACH * workers)))
        some = [jobs[first : first + size] for first in range(0, len(jobs), size)]
        for found in self._jobs.map(_texts, [(task.sampling, task.generation, kept, each) for each in some]):
            yield from found

    def verify_times(
        self, prompts: Sequence[Sequence[int]], settings: PartHeader, gamma: int, timings: int, batch_size: int = 1
    ) -> VerifyTimes:
        """Time the target's forward pass with drafts of each length, on a separate device."""
        how = (prompts, settings, gamma, timings, batch_size)
        timed: VerifyTimes = self._jobs.alone(_verify_times, *how)
        return timed


def _outline(target: TargetJob, tasks: Sequence[Task], options: RecordOptions) -> Outline:
    return outline_of(tasks, worker().target(target), options)


def _features(target: TargetJob, header: RecordHeader) -> bytes:
    with TemporaryDirectory() as temporary:
        save_features(Path(temporary), worker().target(target), header.fingerprint)
        return (Path(temporary) / FEATURES).read_bytes()


def _texts(
    target: TargetJob,
    sampling: SamplingSettings,
    generation: GenerationSettings,
    kept: Kept,
    jobs: Sequence[TextJob],
) -> list[list[RecordedText]]:
    loaded, advance = worker().target(target), worker().advance
    return [record_texts(loaded, job, sampling, generation, kept, advance) for job in jobs]


def _verify_times(
    target: TargetJob,
    prompts: Sequence[Sequence[int]],
    settings: PartHeader,
    gamma: int,
    timings: int,
    batch_size: int,
) -> VerifyTimes:
    loaded, progress = worker().target(target), worker().progress
    return verify_times(loaded, prompts, settings, gamma, timings, progress, batch_size)
