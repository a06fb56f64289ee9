"""The jobs of a study for its targets and runs, in this process or on the workers of a pool.

Runs that are timed take turns in one process, which keeps the target and the runs that it has loaded, so that
timing a run again loads nothing. Runs that are not timed decode side by side on the workers of a pool. What a
worker is asked says everything that it needs, so that another worker can take over when it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from specdec_core.cluster import Pool
from specdec_core.interface.settings import TargetConfig
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.study.config.grouping import batches_of
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import ReadyPrompt
from specdec_core.study.config.study import Task
from specdec_core.study.run.engine_run import EngineRun
from specdec_core.study.run.factory import ready_prompts
from specdec_core.study.run.finished_repeats import Repeat
from specdec_core.study.run.prepared import RunJob
from specdec_core.study.run.worker import TargetJob, TargetJobs, worker


class ReadyRun(Protocol):
    """A run that can be timed as often as asked."""

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:
        """Decode all prompts once, after the drafter has forgotten what earlier repeats taught it.

        Args:
            number: Number of the repeat, from 1.
            advance: Called with the share that is done, between two batches.

        Raises:
            SpecdecError: A plugin or the target fails.
        """

    def close(self) -> None:
        """Free the run."""


class Targets:
    """The targets of a study's tasks.

    Args:
        pool: Runs what is asked of a target; None for this process.
        folder: Base for relative paths, which must lead to the same files on every worker.
        timed: Whether runs are timed, one at a time.
    """

    def __init__(self, pool: Pool | None, folder: Path, *, timed: bool) -> None:
        self.folder = folder
        self.side_by_side = pool is not None and not timed
        self._pool = pool

    def device(self, task: Task) -> str:
        """Return the device that times a task, with its hardware."""
        return "engines" if task.served else str(self._ask(task.target, _device))

    def prompts(self, task: Task, prompts: Sequence[PromptText]) -> list[ReadyPrompt]:
        """Return prompts of a task in the form that a decoder takes, after checking all of them."""
        if task.served:  # the engines encode them
            return [""] * len(prompts)
        ready: list[ReadyPrompt] = self._ask(task.target, _prompts, prompts, task.chat_template)
        return ready

    def prepare(self, task: Task, job: RunJob) -> ReadyRun:
        """Load and warm up a run, or start one that decodes beside others."""
        if job.run.engine is not None:
            batches = batches_of(task.prompts, job.batch_size)
            ordered = [task.prompts[number] for batch in batches for talk in batch for number in talk]
            return EngineRun(job.run.engine, job, ordered)
        kind = _RunBesideOthers if self.side_by_side else _RunInTurn
        return kind(TargetJobs(self._pool, task.target, self.folder), job)

    def _ask(self, target: TargetConfig, function: Callable[..., Any], *arguments: Any) -> Any:
        jobs = TargetJobs(self._pool, target, self.folder)
        return (jobs.ask if self.side_by_side else jobs.alone)(function, *arguments)


class _RunInTurn:
    def __init__(self, jobs: TargetJobs, job: RunJob) -> None:
        self._jobs, self._job = jobs, job
        jobs.alone(_prepare, job)

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:
        worker().advance = advance
        repeat: Repeat = self._jobs.alone(_measure, self._job, number)
        return repeat

    def close(self) -> None:
        worker().forget(self._job.run.name)


class _RunBesideOthers:
    def __init__(self, jobs: TargetJobs, job: RunJob) -> None:
        self._repeats = jobs.map(_decode, [(job,)])

    def measure(self, number: int, advance: Callable[[float], None]) -> Repeat:  # noqa: ARG002
        repeat: Repeat = next(self._repeats)
        return repeat

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
