"""The state of a worker process: a loaded target, and runs of one task that are ready."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specdec_core.cluster import LocalPool, Pool
from specdec_core.interface import Progress
from specdec_core.interface.settings import TargetConfig
from specdec_core.interface.trainer import NoProgress
from specdec_core.models import LoadedModel, load_as_set
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.study.run.prepared import PreparedRun, RunJob


@dataclass(frozen=True)
class TargetJob:
    """A target as a job names it.

    Attributes:
        config: Its settings.
        folder: Base for relative paths, which must lead to the same files in every process.
        threads: Threads of the process that asks: the results may depend on their number.
    """

    config: TargetConfig
    folder: Path
    threads: int


class Worker:
    """The models and runs that a process keeps from one job to the next.

    Args:
        registry: Where plugins come from; by default the installed ones.
        progress: Where progress is reported.

    Attributes:
        advance: Called with the share of a job that is done.
        kept: What jobs of another kind keep, such as a drafter that is replayed.
    """

    def __init__(self, registry: Registry | None = None, progress: Progress | None = None) -> None:
        self.registry = registry or default_registry()
        self.progress = progress or NoProgress()
        self.advance: Callable[[float], None] = lambda _: None
        self.kept: dict[Any, Any] = {}
        self._target: tuple[TargetJob, LoadedModel] | None = None
        self._runs: list[tuple[RunJob, PreparedRun]] = []

    def target(self, job: TargetJob) -> LoadedModel:
        """Return a target; the last one is kept.

        Raises:
            ModelError: It cannot be loaded.
        """
        torch.set_num_threads(job.threads)
        if self._target is None or self._target[0] != job:
            self.release()  # frees memory before the next is loaded
            self.progress.stage(f"loading {job.config.model}")
            self._target = job, load_as_set(job.config, job.folder)
        return self._target[1]

    def run(self, target: TargetJob, job: RunJob) -> PreparedRun:
        """Return a run that is loaded and warmed up; those of one task are kept.

        Raises:
            SpecdecError: It cannot be prepared.
        """
        loaded = self.target(target)
        if self._runs and replace(job, run=(first := self._runs[0][0]).run) != first:
            self.forget()  # it decodes something else, or with other settings
        found = next((run for known, run in self._runs if known.run == job.run), None)
        if found is None:
            found = PreparedRun(loaded, job, self.registry)
            self._runs.append((job, found))
        return found

    def forget(self, run: str | None = None) -> None:
        """Free a run by its name, or all of them."""
        self._runs = [one for one in self._runs if run not in (None, one[0].run.name)]

    def release(self) -> None:
        """Free the target, too."""
        self.forget()
        self._target = None


_chosen: ContextVar[Worker | None] = ContextVar("worker", default=None)
_of_process = cache(Worker)


def worker() -> Worker:
    """Return the worker of the job that runs: that of its process, unless `working_here` sets another."""
    return _chosen.get() or _of_process()


@contextmanager
def working_here(registry: Registry | None, progress: Progress) -> Iterator[Worker]:
    """Let the jobs that this process runs share a new worker, which is freed at the end."""
    token = _chosen.set(made := Worker(registry, progress))
    try:
        yield made
    finally:
        _chosen.reset(token)


class TargetJobs:
    """Runs jobs of one target, each called with the target as a job names it and the arguments.

    Args:
        pool: Runs them; None for this process.
        target: Settings of the target.
        folder: Base for relative paths.
    """

    def __init__(self, pool: Pool | None, target: TargetConfig, folder: Path) -> None:
        self._pool = pool or LocalPool()
        threads = torch.get_num_threads()
        self._target = TargetJob(target, folder.absolute(), threads)
        if not self._pool.gpus or target.device == "cpu":
            self._gpus = 0.0
        else:  # all of a machine for a device map
            self._gpus = float(self._pool.gpus) if target.device_map is not None else 1.0
        self._cpus = 1 if self._gpus else threads

    @property
    def workers(self) -> int:
        """Number of jobs that run side by side."""
        return self._pool.workers(self._cpus, self._gpus)

    def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one job while nothing else runs on its machine; return its result."""
        return self._pool.alone(function, self._target, *arguments, gpus=self._gpus)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one job; return its result."""
        return next(self.map(function, [arguments]))

    def map(self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Run jobs side by side; yield what the function returns for each, in order."""
        every = [(self._target, *job) for job in jobs]
        return self._pool.map(function, every, cpus=self._cpus, gpus=self._gpus)
