"""Runs on the workers of a pool: the study's process loads no model, and keeps the results.

Runs that are timed take turns on one worker, which keeps the target and the runs that it has loaded, so that
timing a run again loads nothing. Runs that are not timed decode side by side. What a worker is asked says
everything that it needs, so that another worker can take over when it dies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specdec_core.cluster import Pool
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.target import TargetConfig
from specdec_core.models import LoadedModel
from specdec_core.models.packing import describe_hardware
from specdec_core.registry import default_registry
from specdec_core.study.config.prompts import PromptText
from specdec_core.study.config.study import Task
from specdec_core.study.run.factory import load_target, ready_prompts
from specdec_core.study.run.isolated import job_from_plain, job_to_plain
from specdec_core.study.run.prepared import PreparedRun, RunJob
from specdec_core.study.run.repeats import Repeat


class PooledTargets:
    """The targets of a study's tasks, on the workers of a pool. See `Targets` of the runner.

    Args:
        pool: Runs what is asked of a target.
        folder: Base for relative paths, which must lead to the same files on every worker.
        timed: Whether runs are timed, one at a time.
    """

    def __init__(self, pool: Pool, folder: Path, *, timed: bool) -> None:
        self.folder = folder
        self.side_by_side = not timed
        self._pool = pool
        self._untimed: dict[float, _SideBySide] = {}

    def device(self, task: Task) -> str:
        """Return the device that times a task, with its hardware."""
        found: str = self._ask(task.target, _device)
        return found

    def prompts(self, task: Task, prompts: Sequence[PromptText]) -> list[str | list[int]]:
        """Return prompts of a task in the form that a decoder takes, after checking all of them."""
        ready: list[str | list[int]] = self._ask(task.target, _prompts, prompts, task.chat_template)
        return ready

    def prepare(self, task: Task, job: RunJob) -> PooledRun:
        """Load and warm up a run; one that is not timed only waits for the first to be measured."""
        plain = job_to_plain(job)
        if self.side_by_side:
            gpus = gpus_of(task.target, self._pool)
            some = self._untimed.setdefault(gpus, _SideBySide(self._pool, gpus))
            place = some.add((*self._where(task.target), plain))
            return PooledRun(lambda _: some.result(place))
        self._ask(task.target, _prepare, plain)
        return PooledRun(lambda number: self._ask(task.target, _measure, plain, number))

    def release(self) -> None:
        """Do nothing: a worker frees a target when it loads another."""

    def _ask(self, target: TargetConfig, function: Callable[..., Any], *arguments: Any) -> Any:
        refuse_shared(target)
        gpus = gpus_of(target, self._pool)
        jobs = [(*self._where(target), *arguments)]
        (found,) = self._pool.map(
            function, jobs, timed=not self.side_by_side, cpus=torch.get_num_threads(), gpus=gpus
        )
        return found

    def _where(self, target: TargetConfig) -> tuple[Mapping[str, Any], str, int]:
        return target.model_dump(mode="json"), str(self.folder), torch.get_num_threads()


class _SideBySide:
    """Runs that decode side by side, all of them from when the first is waited for.

    Args:
        pool: Runs them.
        gpus: Number of GPUs that each needs.
    """

    def __init__(self, pool: Pool, gpus: float) -> None:
        self._pool, self._gpus = pool, gpus
        self._jobs: list[tuple[Any, ...]] = []
        self._results: Iterator[Any] | None = None
        self._found: list[Any] = []

    def add(self, job: tuple[Any, ...]) -> int:
        """Add a run; return its place."""
        self._jobs.append(job)
        return len(self._jobs) - 1

    def result(self, place: int) -> Mapping[str, Any]:
        """Wait for a run; return its repeat as plain data."""
        if self._results is None:
            # The results may depend on the number of threads.
            cpus = 1 if self._gpus else torch.get_num_threads()
            self._results = self._pool.map(_decode, self._jobs, cpus=cpus, gpus=self._gpus, return_exceptions=True)
        while len(self._found) <= place:
            self._found.append(next(self._results))
        found, self._found[place] = self._found[place], None
        if isinstance(found, Exception):
            raise found
        repeat: Mapping[str, Any] = found
        return repeat


class PooledRun:
    """A run on a worker.

    Args:
        measure: Returns the repeat with a number, as plain data.
    """

    def __init__(self, measure: Callable[[int], Mapping[str, Any]]) -> None:
        self._measure = measure

    def measure(self, number: int, progress: Callable[[float], None]) -> Repeat:  # noqa: ARG002
        """Decode all prompts once; see `PreparedRun.measure`."""
        # Through JSON, as the journal does it, so that a repeat is the same now and when it is read again.
        return Repeat.from_plain(json.loads(json.dumps(self._measure(number))))

    def close(self) -> None:
        """Do nothing: a worker frees runs when it prepares those of another task."""


def refuse_shared(target: TargetConfig) -> None:
    """Refuse a target that several processes share.

    Raises:
        ConfigError: It is one.
    """
    if target.tensor_parallel is not None:
        raise ConfigError(
            "a target with 'tensor_parallel' runs under torchrun, which starts its processes; remove --ray."
        )


def gpus_of(target: TargetConfig, pool: Pool) -> float:
    """Return the number of GPUs that a job with a target needs: all of a machine for a device map, else one."""
    if not pool.gpus or target.device == "cpu":
        return 0.0
    return float(pool.gpus) if target.device_map is not None else 1.0


class _Loaded:
    """What this worker has loaded."""

    target: tuple[str, LoadedModel] | None = None
    task: str | None = None
    runs: dict[str, PreparedRun]


_loaded = _Loaded()
_loaded.runs = {}


def worker_target(plain: Mapping[str, Any], folder: str, threads: int) -> LoadedModel:
    """Return a target on this worker, which keeps the last one that it loaded.

    Args:
        plain: Settings of the target.
        folder: Base for relative paths.
        threads: Threads of the process that asks.
    """
    torch.set_num_threads(threads)
    key = json.dumps([plain, folder])
    if _loaded.target is None or _loaded.target[0] != key:
        _loaded.target, _loaded.task, _loaded.runs = None, None, {}  # frees memory before the next is loaded
        _loaded.target = key, load_target(TargetConfig.model_validate(plain), Path(folder))
    return _loaded.target[1]


def _device(plain: Mapping[str, Any], folder: str, threads: int) -> str:
    return describe_hardware(worker_target(plain, folder, threads))


def _prompts(plain: Mapping[str, Any], folder: str, threads: int, prompts: Any, template: str | None) -> Any:
    return ready_prompts(worker_target(plain, folder, threads), prompts, template)


def _prepare(plain: Mapping[str, Any], folder: str, threads: int, job: Mapping[str, Any]) -> None:
    _prepared(worker_target(plain, folder, threads), job)


def _measure(
    plain: Mapping[str, Any], folder: str, threads: int, job: Mapping[str, Any], number: int
) -> Mapping[str, Any]:
    run = _prepared(worker_target(plain, folder, threads), job)
    return run.measure(number, lambda share: None).to_plain()  # noqa: ARG005


def _decode(plain: Mapping[str, Any], folder: str, threads: int, job: Mapping[str, Any]) -> Mapping[str, Any]:
    run = PreparedRun(worker_target(plain, folder, threads), job_from_plain(job), default_registry())
    return run.measure(1, lambda share: None).to_plain()  # noqa: ARG005


def _prepared(target: LoadedModel, plain: Mapping[str, Any]) -> PreparedRun:
    task, run = (json.dumps(part) for part in ({**plain, "run": None}, plain["run"]))
    if _loaded.task != task:
        _loaded.task, _loaded.runs = task, {}
    if run not in _loaded.runs:
        _loaded.runs[run] = PreparedRun(target, job_from_plain(plain), default_registry())
    return _loaded.runs[run]
