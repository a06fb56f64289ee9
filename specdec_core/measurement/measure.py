"""Measuring drafters: acceptance over the target's own text, and the times of steps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specdec_core.costs import StepCosts, measured_costs
from specdec_core.decoding import Decoder, Prompt, make_drafter
from specdec_core.decoding.timing import watch_steps
from specdec_core.interface import Drafter, Progress
from specdec_core.interface.errors import ConfigError, PluginError
from specdec_core.interface.settings import SamplingSettings
from specdec_core.measurement.estimate import estimate
from specdec_core.measurement.measurement_file import (
    Acceptance,
    DrafterEntry,
    DrafterMeasurement,
    Measurement,
    MeasureSettings,
)
from specdec_core.measurement.rank_acceptance import Siblings, measure_ranks
from specdec_core.measurement.reject_all import RejectAllRule
from specdec_core.measurement.samples import take_samples
from specdec_core.measurement.synchronized import synchronized
from specdec_core.models import LoadedModel
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.registry import Registry
from specdec_core.study.config.study import Task
from specdec_core.study.run.factory import opening_prompts
from specdec_core.study.run.provenance import fingerprint_files, versions


@dataclass(frozen=True)
class MeasureContext:
    """The shared parts of a measurement's drafters.

    Attributes:
        target: The loaded target.
        prompts: Prompts to continue.
        sampling: Sampling settings of the target; the temperature is varied.
        settings: What to measure, and how.
        registry: Where plugins come from.
        folder: Base for relative paths in settings.
        target_settings: Settings of the target, recorded in the result.
    """

    target: LoadedModel
    prompts: Sequence[Prompt]
    sampling: SamplingSettings
    settings: MeasureSettings
    registry: Registry
    folder: Path = Path()
    target_settings: Mapping[str, Any] | None = None

    @classmethod
    def of_task(
        cls,
        task: Task,
        target: LoadedModel,
        settings: MeasureSettings,
        registry: Registry,
        folder: Path,
    ) -> MeasureContext:
        """Return the context of a study's task, of which `target` is the loaded target.

        Conversations are measured in their first turns.

        Raises:
            PromptError: The target cannot take the prompts.
        """
        return cls(
            target=target,
            prompts=opening_prompts(target, task.prompts, task.chat_template),
            sampling=task.sampling,
            settings=settings,
            registry=registry,
            folder=folder,
            target_settings=task.target.model_dump(mode="json"),
        )


def measure(
    context: MeasureContext,
    entries: Sequence[DrafterEntry],
    progress: Progress,
    *,
    before: Measurement | None = None,
    keep: Callable[[Measurement], None] = lambda _: None,
) -> tuple[Measurement, Mapping[str, str]]:
    """Measure drafters, one after the other.

    Args:
        context: Target, prompts and settings.
        entries: The drafters.
        progress: Where progress is reported.
        before: An unfinished measurement to resume.
        keep: Called with the measurement so far whenever a drafter is finished.

    Returns:
        The measurement, and why each failed drafter was abandoned, by name.

    Raises:
        ConfigError: If the unfinished measurement has other settings.
        SpecdecError: If the target or the prompts cannot be used.
    """
    measurement = _empty(context, entries)
    known: dict[str, DrafterMeasurement] = {}
    if before is not None:
        _check_same_work(before, measurement)
        known = {one.name: one for one in before.drafters}
    failed: dict[str, str] = {}
    for entry in entries:
        one = known.get(entry.name)
        if one is None:
            try:
                one = _measure_drafter(context, entry, progress)
            except PluginError as error:
                failed[entry.name] = str(error)
                continue
        measurement = measurement.model_copy(update={"drafters": (*measurement.drafters, one)})
        keep(measurement)
    return measurement, failed


def load_drafter(context: MeasureContext, entry: DrafterEntry) -> Drafter:
    """Return a drafter.

    Raises:
        PluginError: If it cannot be loaded, or its requirements are not met.
    """
    return make_drafter(context.target, entry.drafter, registry=context.registry, folder=context.folder)


def _measure_drafter(context: MeasureContext, entry: DrafterEntry, progress: Progress) -> DrafterMeasurement:
    settings = context.settings
    progress.stage(f"{entry.name}: loading")
    drafter, rows = load_drafter(context, entry), max(settings.rows, settings.batch_size)
    acceptance: list[Acceptance] = []
    for temperature in settings.temperature:
        progress.stage(f"{entry.name}: acceptance at temperature {temperature:g}", settings.tokens)
        measured = measure_acceptance(context, entry, drafter, temperature, rows, progress.advance)
        if settings.ranks:
            progress.stage(f"{entry.name}: ranks at temperature {temperature:g}", settings.tokens)
            measured = _with_ranks(measured, context, entry, drafter, rows, progress.advance)
        acceptance += measured
    progress.stage(f"{entry.name}: times", (settings.timings + 1) * (settings.gamma + 1))
    costs = measure_times(context, entry, drafter, progress.advance)
    return DrafterMeasurement.of(entry, costs, acceptance)


def measure_acceptance(
    context: MeasureContext,
    entry: DrafterEntry,
    drafter: Drafter,
    temperature: float,
    rows: int,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Acceptance]:
    """Return a drafter's acceptance at one temperature, for each lenience, over the same texts.

    Args:
        context: Target, prompts and settings.
        entry: The entry of the drafter.
        drafter: The loaded drafter.
        temperature: 0 is greedy.
        rows: Number of prompts to decode together.
        advance: Called with the number of tokens so far.

    Raises:
        PluginError: If the drafter fails.
    """
    settings = context.settings
    rule = RejectAllRule(settings.lenience)
    decoder = Decoder(
        context.target,
        drafter,
        gamma=settings.gamma,
        sampling=context.sampling.model_copy(update={"temperature": temperature}),
        draft_sampling=entry.draft_sampling,
        strict=True,
        rule=rule,
    )
    samples = take_samples(
        decoder, rule, context.prompts, settings, greedy=temperature == 0, rows=rows, advance=advance
    )
    return [
        estimate(samples, which, temperature, lenience, np.random.default_rng(settings.seed))
        for which, lenience in enumerate(settings.lenience)
    ]


def _with_ranks(
    measured: Sequence[Acceptance],
    context: MeasureContext,
    entry: DrafterEntry,
    drafter: Drafter,
    rows: int,
    advance: Callable[[int], None],
) -> list[Acceptance]:
    """Add acceptance by rank where nothing is lenient; it stays empty for what takes lines only."""
    settings = context.settings
    siblings = Siblings(settings.gamma, settings.ranks)
    decoder = Decoder(
        context.target,
        drafter,
        gamma=siblings,
        sampling=context.sampling.model_copy(update={"temperature": measured[0].temperature}),
        draft_sampling=entry.draft_sampling,
        strict=True,
    )
    by_rank = measure_ranks(decoder, siblings.tree, context.prompts, settings, rows, advance)
    return [one.model_copy(update={"by_rank": by_rank}) if one.lenience == 1 else one for one in measured]


def measure_times(
    context: MeasureContext,
    entry: DrafterEntry,
    drafter: Drafter,
    advance: Callable[[int], None] = lambda _: None,
) -> StepCosts:
    """Return the times of steps with this drafter, at the highest temperature.

    Args:
        context: Target, prompts and settings.
        entry: The entry of the drafter.
        drafter: The loaded drafter.
        advance: Called with the number of steps so far.

    Raises:
        PluginError: If the drafter fails.
    """
    settings = context.settings
    timed = partial(
        watch_steps,
        context.target,
        prompts=context.prompts,
        sampling=context.sampling.model_copy(update={"temperature": max(settings.temperature)}),
        **settings.model_dump(include={"gamma", "timings", "batch_size", "max_new_tokens", "seed"}),
    )
    costs_of = partial(measured_costs, gamma=settings.gamma, min_count=min(3, settings.timings))
    drafter.reset()  # what acceptance was measured on
    alone = synchronized(drafter, context.target.device)
    steps = timed(drafter=alone, draft_sampling=entry.draft_sampling, advance=advance)
    costs = costs_of(steps)
    if len(costs.timed) <= settings.gamma:
        costs = costs_of(steps, others=timed(drafter=None))
    return costs


def _empty(context: MeasureContext, entries: Sequence[DrafterEntry]) -> Measurement:
    """Return a measurement without drafters."""
    settings = context.settings
    drafters = [[entry.settings, entry.own_sampling] for entry in entries]
    target = dict(context.target_settings or {})
    texts = hashlib.sha256("\0".join(map(str, context.prompts)).encode()).hexdigest()[:16]
    return Measurement(
        target=context.target.name,
        device=describe_hardware(context.target),
        batch_size=settings.batch_size,
        seed=settings.seed,
        sampling=context.sampling.model_dump(mode="json", exclude={"temperature"}),
        versions=versions(context.registry),
        drafters=(),
        wanted=tuple(entry.name for entry in entries),
        options={
            "target": target,
            "prompts": {"count": len(context.prompts), "sha256": texts},
            "settings": settings.model_dump(mode="json"),
            "settings of drafters": drafters,
            "files": fingerprint_files([target, drafters], context.folder),
        },
    )


def _check_same_work(before: Measurement, now: Measurement) -> None:
    """Check that a measurement is resumed with the same settings.

    Raises:
        ConfigError: With the differences.
    """
    old, new = ({**one.model_dump(mode="json"), **one.options} for one in (before, now))
    differ = [key for key in new if key not in ("drafters", "options") and old.get(key) != new[key]]
    if "files" in differ:
        there, now_there = old.get("files") or {}, new["files"]
        changed = [name for name in {**there, **now_there} if there.get(name) != now_there.get(name)]
        differ[differ.index("files")] = f"the contents of {' and '.join(changed)}"
    if differ:
        raise ConfigError(
            f"the unfinished measurement in this file differs in {', '.join(differ)}; start over with "
            "--overwrite, or choose another --output."
        )
