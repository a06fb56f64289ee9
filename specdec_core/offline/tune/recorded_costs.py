"""Seconds of steps where a record holds T(k): only D(k) of the drafters is timed, along its texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_core.costs import Machine
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.measurement.entries import entries_of
from specdec_core.measurement.file import (
    DrafterMeasurement,
    Measurement,
    read_measurement,
    write_measurement,
)
from specdec_core.models.device import describe_device, parse_device
from specdec_core.offline.record.format import Record, RecordPart, SomeTexts
from specdec_core.offline.replay import DrafterReplay
from specdec_core.offline.tune.costs import TIMINGS
from specdec_core.study.config.study import settings_key

if TYPE_CHECKING:
    from specdec_core.interface import Progress
    from specdec_core.models import LoadedModel
    from specdec_core.registry import Registry
    from specdec_core.study import Run, Study, Task

_AS_FAST = ("dtype", "device_map", "attn_implementation", "packed", "compile", "inflate", "tensor_parallel")
"""Settings of a target that decide how long its steps take, besides what `part_for` compares."""


def why_not_recorded(record: Record, task: Task, gamma: int, batch_size: int, *, pooled: bool) -> str | None:
    """Return why T(k) of a record is not that of the steps of a task here; None if it is, or there is none.

    Args:
        record: The record.
        task: The task.
        gamma: The longest draft of its runs.
        batch_size: Sequences decoded together.
        pooled: Whether workers decode.
    """
    times = record.header.times
    if times is None:
        return None
    here = describe_device(parse_device(task.target.device))
    return next(
        (
            f"T(k) of the record was not used: {why}."
            for why in _differences(record, task, gamma, batch_size, here)
        ),
        "T(k) of the record was not used: workers time the steps." if pooled else None,
    )


def _differences(record: Record, task: Task, gamma: int, batch_size: int, here: str) -> Iterator[str]:
    times = record.header.times
    assert times is not None, "there are some to use"
    if not times.device.startswith(here):
        yield f"it was timed on {times.device}, and the steps of the candidates run on {here}"
    if len(times.verify) <= gamma:
        yield (
            f"it ends at k = {len(times.verify) - 1}, and the candidates draft up to {gamma} tokens; "
            f"`specdec record --timings --gamma {gamma}` adds the others"
        )
    if times.batch_size != batch_size:
        yield f"it was timed with {times.batch_size} sequences together, and the study decodes {batch_size}"
    there = record.header.target
    if changed := [name for name in _AS_FAST if getattr(there, name) != getattr(task.target, name)]:
        yield f"the target was recorded with other settings ({', '.join(changed)})"


def recorded_costs(
    record: Record,
    part: RecordPart,
    study: Study,
    runs: Sequence[Run],
    gamma: int,
    path: Path,
    *,
    target: LoadedModel | None,
    progress: Progress,
    registry: Registry,
) -> Machine:
    """Return T(k) of a record, and D(k) of drafters, which is timed here along its texts as in a replay.

    Args:
        record: The record, with T(k).
        part: The texts.
        study: The study.
        runs: The candidates.
        gamma: The longest draft.
        path: File that receives the times; those of drafters that it has are not measured again.
        target: The target, if it is loaded.
        progress: Where progress is reported.
        registry: Where plugins come from.
    """
    machine = _machine(record)
    measurement = _begun(record, machine, gamma, path)
    known = {settings_key(one.settings, one.draft_sampling): one for one in measurement.drafters}
    texts = SomeTexts(part, _enough(part, (TIMINGS + 1) * gamma * (gamma + 1)))
    missing: dict[str, str] = {}
    for key, entry in entries_of(runs).items():
        if key in known:
            continue
        progress.stage(f"{entry.name}: times")
        try:
            replay = DrafterReplay(
                record,
                texts,
                entry.drafter,
                max_gamma=gamma,
                draft_sampling=entry.draft_sampling,
                registry=registry,
                folder=study.folder,
                target=target,
                plugin_timeout=study.plugin_timeout,
            )
            known[key] = DrafterMeasurement.of(entry, replay.costs(machine.target, TIMINGS))
        except SpecdecError as error:
            missing[key] = f"its drafter failed: {error}"
            continue
        write_measurement(path, measurement.model_copy(update={"drafters": tuple(known.values())}))
    return replace(
        machine,
        name=f"this machine ({machine.device}; T(k) from the record)",
        drafters={key: one.seconds for key, one in known.items()},
        missing=missing,
    )


def _machine(record: Record) -> Machine:
    times = record.header.times
    assert times is not None, "the record has times"
    return times.machine


def _enough(part: RecordPart, tokens: int) -> tuple[int, ...]:
    """Return the numbers of the first texts of a part that hold so many tokens, or all."""
    chosen: list[int] = []
    for number, text in enumerate(part):
        if tokens <= 0:
            break
        chosen.append(number)
        tokens -= len(text.tokens)
    return tuple(chosen)


def _begun(record: Record, machine: Machine, gamma: int, path: Path) -> Measurement:
    """Return what an earlier tuning measured with these settings; without drafters if none did."""
    header = record.header
    options = {
        "record": header.model_dump(mode="json", include={"fingerprint", "tokenizer", "times"}),
        "gamma": gamma,
        "timings": TIMINGS,
    }
    new = Measurement(
        target=header.target.model,
        device=machine.device,
        batch_size=machine.batch_size,
        seed=0,
        sampling={},
        versions=header.versions,
        drafters=(),
        options=options,
    )
    try:
        before = read_measurement(path) if path.is_file() else new
    except ConfigError:
        return new
    return before if before.options == options else new
