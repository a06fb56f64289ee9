"""Measuring drafters beside a target: acceptance in the shadow of its own text, and what steps take."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specdec_core.border import Drafter
from specdec_core.decoding import Decoder, Prompt
from specdec_core.errors import ConfigError, PluginError
from specdec_core.measurement.estimate import estimate
from specdec_core.measurement.file import Acceptance, DrafterMeasurement, Measurement
from specdec_core.measurement.samples import take_samples
from specdec_core.measurement.settings import MeasureSettings, Subject
from specdec_core.measurement.shadow import Shadow
from specdec_core.measurement.timing import Always, InTurns, Medians, Repeating, Timing, synchronised, watch_steps
from specdec_core.models import LoadedModel
from specdec_core.named_files import digests
from specdec_core.registry import Registry
from specdec_core.settings import SamplingSettings
from specdec_core.study.identity import describe_device, versions
from specdec_core.study.making import make_drafter


class MeasureObserver(Protocol):
    """Is told how a measurement goes on; for progress on a terminal."""

    def stage(self, what: str, total: float | None = None) -> None:
        """A part of the work begins: `total` units of it, where that is known."""

    def advance(self, done: float, note: str = "") -> None:
        """So many units of the stage are done."""


@dataclass(frozen=True)
class Bench:
    """What all drafters of a measurement share.

    Attributes:
        target: The target, loaded.
        prompts: What it goes on from.
        sampling: Its settings, but for the temperature, which is varied.
        settings: How much is measured, and how.
        registry: Where plugins come from.
        folder: Where relative paths in their settings are meant from.
        description: What the target was called, for results.
    """

    target: LoadedModel
    prompts: Sequence[Prompt]
    sampling: SamplingSettings
    settings: MeasureSettings
    registry: Registry
    folder: Path = Path()
    description: Mapping[str, Any] | None = None


def measure(
    bench: Bench,
    subjects: Sequence[Subject],
    observer: MeasureObserver,
    *,
    before: Measurement | None = None,
    keep: Callable[[Measurement], None] = lambda _: None,
) -> tuple[Measurement, Mapping[str, str]]:
    """Measure drafters, one after the other.

    Args:
        bench: Target, prompts and settings.
        subjects: The drafters.
        observer: Is told how it goes on.
        before: An earlier measurement that was stopped; what it has is not done again.
        keep: Called with all there is whenever a drafter is finished, so that stopping loses little.

    Returns:
        The measurement, and why drafters were given up, by name: they could not be loaded, or failed on the way.

    Raises:
        ConfigError: The earlier measurement is another one.
        SpecdecError: What is wrong with the target or the prompts.
    """
    measurement = _empty(bench, subjects)
    known: dict[str, DrafterMeasurement] = {}
    if before is not None:
        _check_same_work(before, measurement)
        known = {one.name: one for one in before.drafters}
    failed: dict[str, str] = {}
    for subject in subjects:
        one = known.get(subject.name)
        if one is None:
            try:
                one = _measure_drafter(bench, subject, observer)
            except PluginError as error:
                failed[subject.name] = str(error)
                continue
        measurement = measurement.model_copy(update={"drafters": (*measurement.drafters, one)})
        keep(measurement)
    return measurement, failed


def load_drafter(bench: Bench, subject: Subject) -> tuple[Drafter, int]:
    """Return a drafter, and how many prompts can be decoded together to measure its acceptance.

    Raises:
        PluginError: It cannot be loaded, or needs what the target does not have.
    """
    make = partial(make_drafter, bench.target, subject.drafter, registry=bench.registry, folder=bench.folder)
    settings = bench.settings
    most = max(settings.rows, settings.batch_size)
    try:
        return make(batch_size=most), most
    except PluginError:
        # Perhaps it takes no more prompts than are timed together.
        return make(batch_size=settings.batch_size), settings.batch_size


def _measure_drafter(bench: Bench, subject: Subject, observer: MeasureObserver) -> DrafterMeasurement:
    settings = bench.settings
    observer.stage(f"{subject.name}: loading")
    drafter, rows = load_drafter(bench, subject)
    acceptance: list[Acceptance] = []
    for temperature in settings.temperature:
        observer.stage(f"{subject.name}: acceptance at temperature {temperature:g}", settings.tokens)
        acceptance += measure_acceptance(bench, subject, drafter, temperature, rows, observer.advance)
    observer.stage(f"{subject.name}: times", (settings.timings + 1) * (settings.gamma + 1))
    timing = measure_times(bench, subject, drafter, observer.advance)
    own = subject.draft_sampling
    return DrafterMeasurement(
        name=subject.name,
        settings=subject.settings,
        acceptance=tuple(acceptance),
        seconds=timing.seconds,
        c=timing.c,
        draft_sampling=None if own is None else own.model_dump(mode="json"),
        timed=timing.timed,
    )


def measure_acceptance(
    bench: Bench,
    subject: Subject,
    drafter: Drafter,
    temperature: float,
    rows: int,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Acceptance]:
    """Return a drafter's acceptance at one temperature, for each lenience; one text serves them all.

    Args:
        bench: Target, prompts and settings.
        subject: What the drafter is called.
        drafter: The drafter, loaded.
        temperature: 0 is argmax.
        rows: How many prompts are decoded together.
        advance: Called with the number of tokens so far.

    Raises:
        PluginError: The drafter failed.
    """
    settings = bench.settings
    shadow = Shadow(settings.lenience)
    decoder = Decoder(
        bench.target,
        drafter,
        gamma=Always(settings.gamma),
        sampling=bench.sampling.model_copy(update={"temperature": temperature}),
        draft_sampling=subject.draft_sampling,
        strict=True,
        rule=shadow,
    )
    samples = take_samples(
        decoder, shadow, bench.prompts, settings, argmax=temperature == 0, rows=rows, advance=advance
    )
    return [
        estimate(samples, which, temperature, lenience, np.random.default_rng(settings.seed))
        for which, lenience in enumerate(settings.lenience)
    ]


def measure_times(
    bench: Bench, subject: Subject, drafter: Drafter, advance: Callable[[int], None] = lambda _: None
) -> Timing:
    """Return what steps with this drafter take, at the highest of the temperatures.

    Where it does not make drafts of every length, T(k) of the missing ones is measured with drafts that are made
    up.

    Raises:
        PluginError: The drafter failed.
    """
    gamma = bench.settings.gamma
    medians = _medians(bench, synchronised(drafter, bench.target.device), subject.draft_sampling, advance)
    others = _medians(bench, Repeating(bench.target.info())).verify if medians.lacks(gamma) else None
    return medians.timing(gamma, others)


def _medians(
    bench: Bench,
    drafter: Drafter,
    draft_sampling: SamplingSettings | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Medians:
    settings = bench.settings
    decoder = Decoder(
        bench.target,
        drafter,
        gamma=InTurns(settings.gamma, np.random.default_rng(settings.seed)),
        sampling=bench.sampling.model_copy(update={"temperature": max(settings.temperature)}),
        draft_sampling=draft_sampling,
        strict=True,
    )
    reports = watch_steps(decoder, bench.prompts, settings, advance)
    return Medians.of(reports, fewest=min(3, settings.timings))


def _empty(bench: Bench, subjects: Sequence[Subject]) -> Measurement:
    """Return a measurement of no drafter yet."""
    settings = bench.settings
    drafters = [
        [subject.settings, own and own.model_dump(mode="json")]
        for subject in subjects
        for own in [subject.draft_sampling]
    ]
    target = dict(bench.description or {})
    texts = hashlib.sha256("\0".join(map(str, bench.prompts)).encode()).hexdigest()[:16]
    return Measurement(
        target=bench.target.name,
        device=describe_device(bench.target.device),
        batch_size=settings.batch_size,
        seed=settings.seed,
        sampling=bench.sampling.model_dump(mode="json", exclude={"temperature"}),
        versions=versions(bench.registry),
        drafters=(),
        wanted=tuple(subject.name for subject in subjects),
        options={
            "target": target,
            "prompts": {"count": len(bench.prompts), "sha256": texts},
            "settings": settings.model_dump(mode="json"),
            "settings of drafters": drafters,
            "files": digests([target, drafters], bench.folder),
        },
    )


def _check_same_work(before: Measurement, now: Measurement) -> None:
    """Refuse to go on from a measurement that differs in anything but how much of it is done.

    Raises:
        ConfigError: With what differs.
    """
    old, new = ({**one.model_dump(mode="json"), **one.options} for one in (before, now))
    differ = [key for key in new if key not in ("drafters", "options") and old.get(key) != new[key]]
    if "files" in differ:
        there, now_there = old.get("files") or {}, new["files"]
        changed = [name for name in {**there, **now_there} if there.get(name) != now_there.get(name)]
        differ[differ.index("files")] = f"what is in {' and '.join(changed)}"
    if differ:
        raise ConfigError(
            f"an unfinished measurement is there already, and differs in {', '.join(differ)}; --overwrite begins "
            "anew, or give another --output."
        )
