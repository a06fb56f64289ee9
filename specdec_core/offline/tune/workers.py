"""Timing the steps of candidates, here or by a worker of a pool on a device of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_core.cluster import Pool
from specdec_core.interface import NoProgress
from specdec_core.interface.settings import SamplingSettings
from specdec_core.measurement.file import DrafterEntry, Measurement, MeasureSettings
from specdec_core.measurement.measure import MeasureContext, measure
from specdec_core.registry import default_registry, plugin_settings
from specdec_core.study import Study, Task
from specdec_core.study.run.remote import gpus_of, refuse_shared, worker_target


def measured_on(
    pool: Pool,
    study: Study,
    task: Task,
    entries: Sequence[DrafterEntry],
    settings: MeasureSettings,
    before: Measurement | None,
) -> tuple[Measurement, Mapping[str, str]]:
    """Time the steps of drafters on a worker; see `specdec_core.measurement.measure.measure`.

    Args:
        pool: The workers.
        study: The study.
        task: The task; its prompts are decoded.
        entries: The drafters.
        settings: What is timed.
        before: An unfinished measurement to resume.

    Raises:
        SpecdecError: The target cannot be timed on the prompts.
    """
    refuse_shared(task.target)
    where = (task.target.model_dump(mode="json"), str(study.folder.absolute()), torch.get_num_threads())
    plain = [(one.name, one.drafter.model_dump(mode="json"), one.draft_sampling) for one in entries]
    job = (*where, replace(task, runs=()), plain, settings, study.plugin_timeout, before)
    ((measurement, failed),) = pool.map(_measured, [job], timed=True, gpus=gpus_of(task.target, pool))
    return measurement, failed


def _measured(
    target: Mapping[str, Any],
    folder: str,
    threads: int,
    task: Task,
    entries: Sequence[tuple[str, Mapping[str, Any], SamplingSettings | None]],
    settings: MeasureSettings,
    plugin_timeout: float | None,
    before: Measurement | None,
) -> tuple[Measurement, Mapping[str, str]]:
    registry = default_registry()
    loaded = worker_target(target, folder, threads)
    context = MeasureContext.of_task(task, loaded, settings, registry, Path(folder), plugin_timeout)
    drafters = [
        DrafterEntry(name, plugin_settings(registry, "drafter", config), own) for name, config, own in entries
    ]
    measurement, failed = measure(context, drafters, NoProgress(), before=before, times_only=True)
    return measurement, dict(failed)
