"""The jobs of a study for its targets and runs, in this process or on the workers of a pool.

Runs that are timed take turns in one process, which keeps the target and the runs that it has loaded, so that
timing a run again loads nothing. Runs that are not timed decode side by side on the workers of a pool. What a
worker is asked says everything that it needs, so that another worker can take over when it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from specdec_core.cluster import Pool
from specdec_core.interface.errors import PluginError
from specdec_core.interface.settings import TargetConfig
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.study.config.grouping import batches_of
from specdec_core.study.config.prompts import PromptText, ReadyPrompt
from specdec_core.study.config.study import Task
from specdec_core.study.run.engine_run import EngineRun
from specdec_core.study.run.factory import ready_prompts
from specdec_core.study.run.isolated import IsolatedPool, ProcessEndedError
from specdec_core.study.run.prepared import RunJob
from specdec_core.study.run.repeats import Repeat
from specdec_core.study.run.worker import TargetJob, TargetJobs, worker


class ReadyRun(Protocol):
    """A run that can be timed as often as asked."""

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:
        """Decode all prompts once, after the drafter has forgotten what earlier repeats taught it.

        Args:
            number: Number of the repeat, from 1.
            advance: Called with the share that is done, between two batches.

        Raises:
            SpecdecError: A plugin or the target fails, or the process ends.
        """

    def close(self) -> None:
        """Free the run, and end its process."""


class Targets:
    """The targets of a study's tasks.

    Args:
        pool: Runs what is asked of a target; None for this process.
        folder: Base for relative paths, which must lead to the same files on every worker.
        timed: Whether runs are timed, one at a time.
        isolate: Give each run a separate process.
    """

    def __init__(self, pool: Pool | None, folder: Path, *, timed: bool, isolate: bool = False) -> None:
        self.folder = folder
        self.side_by_side = pool is not None and not timed
        self._isolate = isolate
        self._pool = IsolatedPool() if isolate else pool
        self._untimed: dict[float, _SideBySide] = {}

    def device(self, task: Task) -> str:
        """Return the device that times a task, with its hardware."""
        if task.served:
            return "engines"
        found: str = self._of(task.target).ask(_device, timed=not self.side_by_side)
        return found

    def prompts(self, task: Task, prompts: Sequence[PromptText]) -> list[ReadyPrompt]:
        """Return prompts of a task in the form that a decoder takes, after checking all of them."""
        if task.served:  # the engines encode them
            return [""] * len(prompts)
        ready: list[ReadyPrompt] = self._of(task.target).ask(
            _prompts, prompts, task.chat_template, timed=not self.side_by_side
        )
        return ready

    def prepare(self, task: Task, job: RunJob) -> ReadyRun:
        """Load and warm up a run; one that decodes beside others only waits for the first to be measured."""
        if job.run.engine is not None:
            batches = batches_of(task.prompts, job.batch_size)
            ordered = [task.prompts[number] for batch in batches for talk in batch for number in talk]
            return EngineRun(job.run.engine, job, ordered)
        jobs = self._of(task.target)
        if self.side_by_side:
            return self._untimed.setdefault(jobs.gpus, _SideBySide(jobs)).add(jobs.target, job)
        return _Run(jobs, job)

    def release(self) -> None:
        """Free the memory of a target that only processes of runs will need."""
        if self._isolate:
            worker().release()

    def _of(self, target: TargetConfig) -> TargetJobs:
        return TargetJobs(self._pool, target, self.folder)


class _Run:
    """A run that takes turns with others."""

    def __init__(self, jobs: TargetJobs, job: RunJob) -> None:
        self._jobs, self._job = jobs, job
        try:
            self._ask("loading and warming up", _prepare)
        except BaseException:
            self.close()
            raise

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:
        worker().advance = advance
        repeat: Repeat = self._ask(f"repeat {number}", _measure, number)
        return repeat

    def close(self) -> None:
        worker().forget(self._job.run.name)
        self._jobs.pool.end(self._job.run.name)

    def _ask(self, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._jobs.ask(function, self._job, *arguments, timed=True, own=self._job.run.name)
        except ProcessEndedError as error:
            raise PluginError(f"{error} in the middle of {doing}.") from error


class _SideBySide:
    """Runs that decode side by side, all of them from when the first is waited for."""

    def __init__(self, jobs: TargetJobs) -> None:
        self._like = jobs
        self._jobs: list[tuple[TargetJob, RunJob]] = []
        self._results: Iterator[Any] | None = None
        self._found: list[Any] = []

    def add(self, target: TargetJob, job: RunJob) -> ReadyRun:
        self._jobs.append((target, job))
        return _RunBesideOthers(self, len(self._jobs) - 1)

    def result(self, index: int) -> Repeat:
        """Wait for a run; return its repeat."""
        if self._results is None:
            like = self._like
            self._results = like.pool.map(
                _decode, self._jobs, cpus=like.cpus, gpus=like.gpus, return_exceptions=True
            )
        while len(self._found) <= index:
            self._found.append(next(self._results))
        found, self._found[index] = self._found[index], None
        if isinstance(found, Exception):
            raise found
        repeat: Repeat = found
        return repeat


class _RunBesideOthers:
    def __init__(self, others: _SideBySide, index: int) -> None:
        self._others, self._index = others, index

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:  # noqa: ARG002
        return self._others.result(self._index)

    def close(self) -> None:
        """Do nothing: a worker frees the run when it has decoded."""


def _device(target: TargetJob) -> str:
    return describe_hardware(worker().target(target))


def _prompts(target: TargetJob, prompts: Sequence[PromptText], template: str | None) -> list[ReadyPrompt]:
    return ready_prompts(worker().target(target), prompts, template)


def _prepare(target: TargetJob, job: RunJob) -> None:
    worker().run(target, job)


def _measure(target: TargetJob, job: RunJob, number: int) -> Repeat:
    return worker().run(target, job).measure(number, worker().advance)


def _decode(target: TargetJob, job: RunJob) -> Repeat:
    try:
        return worker().run(target, job).measure(1, lambda _: None)
    finally:
        worker().forget()
