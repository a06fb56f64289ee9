"""Recording on the workers of a pool: each job decodes some batches, and the study's process writes the shards."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from specdec_core.cluster import Pool
from specdec_core.interface import NoProgress, Progress
from specdec_core.interface.files import writing_file
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.target import TargetConfig
from specdec_core.offline.record.decode import Kept, TextJob, record_texts
from specdec_core.offline.record.format import RecordedText, RecordHeader, VerifyTimes
from specdec_core.offline.record.outline import Outline, Part, RecordOptions, TargetHere
from specdec_core.offline.record.reader import FEATURES
from specdec_core.study.config.study import Task
from specdec_core.study.run.remote import gpus_of, refuse_shared, worker_target

_JOBS_EACH = 4
"""Number of jobs for each worker, so that none waits long for the last one."""
_BATCHES = 16
"""The most batches of a job: what is decoded again if its worker dies."""


class PooledTarget:
    """The target of a recording, on the workers of a pool. See `RecordedTarget`.

    Args:
        pool: The workers.
        target: Settings of the target.
        folder: Base for relative paths, which must lead to the same files on every worker.

    Raises:
        ConfigError: The target is shared by processes of torchrun.
    """

    def __init__(self, pool: Pool, target: TargetConfig, folder: Path) -> None:
        refuse_shared(target)
        self._pool, self._gpus = pool, gpus_of(target, pool)
        threads = torch.get_num_threads()
        self._cpus = 1 if self._gpus else threads  # the results may depend on the number of threads
        self._where = (target.model_dump(mode="json"), str(folder.absolute()), threads)

    def outline(self, tasks: Sequence[Task], options: RecordOptions) -> Outline:
        """Load the target; return the outline of the record of some tasks."""
        plain = [replace(task, runs=()) for task in tasks]  # runs play no part
        found: Outline = self._ask(_outline, plain, options)
        return found

    def save_features(self, path: Path, header: RecordHeader) -> None:
        """Write the target's embeddings into the folder of a record."""
        content: bytes = self._ask(_features, header)
        with writing_file(path / FEATURES) as place:
            place.write_bytes(content)

    def texts(
        self,
        task: Task,
        kept: Kept,
        jobs: Sequence[TextJob],
        advance: Callable[[float], None],  # noqa: ARG002  # only whole jobs are heard of
    ) -> Generator[Sequence[RecordedText], None, None]:
        """Yield the texts of each job, in order; they are decoded side by side."""
        workers = self._pool.workers(self._cpus, self._gpus)
        size = min(_BATCHES, -(-len(jobs) // (_JOBS_EACH * workers)))
        some = [jobs[first : first + size] for first in range(0, len(jobs), size)]
        how = (task.sampling, task.generation, kept)
        asked = [(*self._where, *how, each) for each in some]
        for found in self._pool.map(_texts, asked, cpus=self._cpus, gpus=self._gpus):
            yield from found

    def verify_times(self, part: Part, options: RecordOptions, progress: Progress) -> VerifyTimes:
        """Time the target's forward pass with drafts of each length, on a device of its own."""
        progress.stage("timing the target")
        own = replace(part, task=replace(part.task, runs=()))
        timed: VerifyTimes = self._ask(_verify_times, own, options, timed=True)
        return timed

    def _ask(self, function: Callable[..., Any], *arguments: Any, timed: bool = False) -> Any:
        jobs = [(*self._where, *arguments)]
        (found,) = self._pool.map(function, jobs, timed=timed, cpus=self._cpus, gpus=self._gpus)
        return found


def _here(plain: Mapping[str, Any], folder: str, threads: int) -> TargetHere:
    return TargetHere(partial(worker_target, plain, folder, threads))


def _outline(
    plain: Mapping[str, Any], folder: str, threads: int, tasks: Sequence[Task], options: RecordOptions
) -> Outline:
    return _here(plain, folder, threads).outline(tasks, options)


def _features(plain: Mapping[str, Any], folder: str, threads: int, header: RecordHeader) -> bytes:
    with TemporaryDirectory() as place:
        _here(plain, folder, threads).save_features(Path(place), header)
        return (Path(place) / FEATURES).read_bytes()


def _texts(
    plain: Mapping[str, Any],
    folder: str,
    threads: int,
    sampling: SamplingSettings,
    generation: GenerationSettings,
    kept: Kept,
    jobs: Sequence[TextJob],
) -> list[list[RecordedText]]:
    target = worker_target(plain, folder, threads)
    return [record_texts(target, job, sampling, generation, kept) for job in jobs]


def _verify_times(
    plain: Mapping[str, Any], folder: str, threads: int, part: Part, options: RecordOptions
) -> VerifyTimes:
    return _here(plain, folder, threads).verify_times(part, options, NoProgress())
