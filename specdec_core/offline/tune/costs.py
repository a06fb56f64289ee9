"""What steps cost on a machine: T(k) of the target, and D(k) of each drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_core.costs import Machine
from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.entries import entries_of
from specdec_core.measurement.file import (
    DrafterEntry,
    Measurement,
    MeasureSettings,
    read_measurement,
    write_measurement,
)
from specdec_core.measurement.machines import machine_of
from specdec_core.study.config.study import drafter_key

if TYPE_CHECKING:
    from specdec_core.cluster import Pool
    from specdec_core.interface import Progress
    from specdec_core.models import LoadedModel
    from specdec_core.registry import Registry
    from specdec_core.study import Run, Study, Task
    from specdec_core.study.run.worker import TargetJob

TIMINGS = 10
"""Timings of each draft length; the finalists are timed live in any case."""


def read_costs(path: Path, runs: Sequence[Run]) -> Machine:
    """Read the times of drafters from a file that `specdec measure --output` wrote.

    Args:
        path: The file.
        runs: The candidates.

    Raises:
        ConfigError: It cannot be read, or has the times of none of them.
    """
    measurement = read_measurement(path)
    absent = f"{path} has no times of this drafter; `specdec measure STUDY --output FILE` measures all of a study."
    found = _costs(measurement, path.stem, runs, absent)
    if not found.drafters:
        names = ", ".join(one.name for one in measurement.drafters) or "none"
        raise ConfigError(f"{path} has the times of no candidate; it has those of {names}, with their settings.")
    return found


def measure_costs(
    study: Study,
    task: Task,
    gamma: int,
    path: Path,
    *,
    target: LoadedModel | None,
    progress: Progress,
    registry: Registry,
    pool: Pool | None = None,
) -> Machine:
    """Time the steps of all drafters of a task on this machine, or on the device of a pool.

    Args:
        study: The study.
        task: The task; its prompts are decoded.
        gamma: The longest draft.
        path: File that receives the times; those of drafters that it has are not measured again.
        target: The target of the task; None with a pool, whose worker loads it.
        progress: Where progress is reported.
        registry: Where plugins come from.
        pool: Workers, of which one times the steps on a device of its own.

    Raises:
        SpecdecError: The target cannot be timed on the prompts.
    """
    from specdec_core.measurement.measure import MeasureContext, measure
    from specdec_core.study.run.worker import TargetJobs

    runs = task.runs[1:]
    entries = entries_of(runs)
    settings = MeasureSettings(
        tokens=1,
        temperature=(task.sampling.temperature,),
        gamma=gamma,
        batch_size=study.config.batch_size,
        timings=TIMINGS,
        max_new_tokens=task.generation.max_new_tokens,
        seed=task.generation.seed,
    )
    every = list(entries.values())

    def run(before: Measurement | None) -> tuple[Measurement, Mapping[str, str]]:
        if pool is not None:
            progress.stage("timing steps")
            jobs = TargetJobs(pool, task.target, study.folder)
            own = replace(task, runs=())
            made, failed = jobs.ask(_measured, own, every, settings, study.plugin_timeout, before, timed=True)
            write_measurement(path, made)
            return made, failed
        keep = lambda made: write_measurement(path, made)  # noqa: E731
        assert target is not None, "it is loaded to be timed"
        context = MeasureContext.of_task(task, target, settings, registry, study.folder, study.plugin_timeout)
        return measure(context, every, progress, before=before, keep=keep, times_only=True)

    try:
        measurement, failed = run(read_measurement(path) if path.is_file() else None)
    except ConfigError:  # it has the times of something else
        measurement, failed = run(None)
    found = _costs(
        measurement, f"{'this machine' if pool is None else 'a worker'} ({measurement.device})", runs, ""
    )
    broken = ((key, failed[one.name]) for key, one in entries.items() if one.name in failed)
    return replace(found, missing={key: f"its drafter failed: {reason}" for key, reason in broken})


def _measured(
    target: TargetJob,
    task: Task,
    entries: Sequence[DrafterEntry],
    settings: MeasureSettings,
    plugin_timeout: float | None,
    before: Measurement | None,
) -> tuple[Measurement, Mapping[str, str]]:
    from specdec_core.measurement.measure import MeasureContext, measure
    from specdec_core.study.run.worker import worker

    registry, loaded = worker().registry, worker().target(target)
    context = MeasureContext.of_task(task, loaded, settings, registry, target.folder, plugin_timeout)
    measurement, failed = measure(context, entries, worker().progress, before=before, times_only=True)
    return measurement, dict(failed)


def _costs(measurement: Measurement, name: str, runs: Sequence[Run], absent: str) -> Machine:
    """Return what a measurement says of some runs."""
    if not measurement.drafters:
        raise ConfigError(f"{name}: no drafter could be timed.")
    machine = machine_of(measurement, name)
    wanted = dict.fromkeys(drafter_key(run.drafter, run.draft_sampling) for run in runs)
    known = {key: machine.drafters[key] for key in wanted if key in machine.drafters}
    return replace(machine, drafters=known, missing={key: absent for key in wanted if key not in known})
