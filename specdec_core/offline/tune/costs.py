"""Costs of steps on a machine: T(k) of the target, and D(k) of each drafter, timed along a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from specdec_core.costs import Machine
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.measurement.entries import entries_of
from specdec_core.measurement.machines import machine_of
from specdec_core.measurement.measurement_file import (
    DrafterMeasurement,
    Measurement,
    read_measurement,
    write_measurement,
)
from specdec_core.models.device import describe_device, parse_device
from specdec_core.offline.record.format import Record, RecordPart, VerifyTimes
from specdec_core.study.config.study import drafter_key, settings_key

if TYPE_CHECKING:
    from specdec_core.interface import Progress
    from specdec_core.offline.replay.runs import Replayer
    from specdec_core.study import Run, Task

TIMINGS = 10
"""Timings of each draft length; the finalists are timed live in any case."""
_AS_FAST = (
    "dtype",
    "device_map",
    "attn_implementation",
    "packed",
    "compile",
    "exact_shapes",
    "inflate",
)
"""Settings of a target that decide how long its steps take, besides what `part_for` compares."""


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
    if not measurement.drafters:
        raise ConfigError(f"{path.stem}: no drafter could be timed.")
    machine = machine_of(measurement, path.stem)
    wanted = dict.fromkeys(drafter_key(run.drafter, run.draft_sampling) for run in runs)
    known = {key: machine.drafters[key] for key in wanted if key in machine.drafters}
    if not known:
        names = ", ".join(one.name for one in measurement.drafters) or "none"
        raise ConfigError(f"{path} has the times of no candidate; it has those of {names}, with their settings.")
    return replace(machine, drafters=known, missing={key: absent for key in wanted if key not in known})


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


class CandidateTimes:
    """T(k) and D(k) of the candidates of a task, in a file from which a tuning resumes.

    Args:
        path: The file, in the form of `specdec measure`.
        record: The record along which drafters are timed.
        task: The task; its runs are the candidates.
        gamma: The longest draft.
        batch_size: Sequences decoded together.
        pooled: Whether a worker times the steps.

    Attributes:
        note: Why T(k) of the record is not used; None if it is, or there is none.
        target: T(k), that of the record or one that was measured before; None if it has to be timed.
    """

    def __init__(
        self, path: Path, record: Record, task: Task, gamma: int, batch_size: int, *, pooled: bool
    ) -> None:
        self._path, self._runs, self._gamma, self._batch_size = path, task.runs[1:], gamma, batch_size
        self.note = why_not_recorded(record, task, gamma, batch_size, pooled=pooled)
        self._recorded = record.header.times if self.note is None else None
        self._settings: Mapping[str, Any] = {
            "target": task.target.model_dump(mode="json"),
            "record": record.header.model_dump(mode="json", include={"fingerprint", "tokenizer"}),
            "gamma": gamma,
            "batch_size": batch_size,
            "timings": TIMINGS,
        }
        self._versions, self._where = record.header.versions, "a worker" if pooled else "this machine"
        self.target = self._recorded
        self._known: dict[str, DrafterMeasurement] = {}
        self._resume(None if pooled else describe_device(parse_device(task.target.device)))

    def machine(self, replayer: Replayer, times: VerifyTimes, progress: Progress) -> Machine:
        """Return the costs of steps, after D(k) of the drafters that the file does not hold has been timed.

        Args:
            replayer: Replays the drafters.
            times: T(k).
            progress: Where progress is reported.
        """
        machine, missing = times.machine, {}
        texts = _enough(replayer.part, (TIMINGS + 1) * self._gamma * (self._gamma + 1) * self._batch_size)
        first = {drafter_key(run.drafter, run.draft_sampling): run for run in reversed(self._runs)}
        for key, entry in entries_of(self._runs).items():
            if key in self._known:
                continue
            progress.stage(f"{entry.name}: times")
            try:
                replay = replayer.start(first[key], self._gamma, texts)()
                costs = replay.costs(machine.target, TIMINGS, self._batch_size)
            except SpecdecError as error:
                missing[key] = f"its drafter failed: {error}"
                continue
            self._known[key] = DrafterMeasurement.of(entry, costs)
            self._keep(times)
        own = "; T(k) from the record" if self._recorded is not None else ""
        drafters = {key: one.seconds for key, one in self._known.items()}
        name = f"{self._where} ({machine.device}{own})"
        return replace(machine, name=name, drafters=drafters, missing=missing, note=self.note)

    def _resume(self, device: str | None) -> None:
        """Take what the file holds, if it was measured with these settings, on this device."""
        try:
            before = read_measurement(self._path) if self._path.is_file() else None
            if before is None or before.options.get("settings") != self._settings:
                return
            times = VerifyTimes.model_validate(before.options.get("times"))
        except (ConfigError, ValidationError):  # it has the times of something else
            return
        if self._recorded in (None, times) and times.device.startswith(device or ""):
            self.target = times
            self._known = {settings_key(one.settings, one.draft_sampling): one for one in before.drafters}

    def _keep(self, times: VerifyTimes) -> None:
        measured = Measurement(
            target=self._settings["target"]["model"],
            device=times.device,
            batch_size=times.batch_size,
            seed=0,
            sampling={},
            versions=self._versions,
            drafters=tuple(self._known.values()),
            options={"settings": self._settings, "times": times.model_dump(mode="json")},
        )
        write_measurement(self._path, measured)


def _enough(part: RecordPart, tokens: int) -> tuple[int, ...]:
    """Return the numbers of the first texts of a part that hold so many tokens, or all."""
    chosen: list[int] = []
    for number, text in enumerate(part):
        if tokens <= 0:
            break
        chosen.append(number)
        tokens -= len(text.tokens)
    return tuple(chosen)
