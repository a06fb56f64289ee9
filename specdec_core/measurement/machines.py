"""The machine that a measurement was taken on, for replays. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.file import DrafterMeasurement, Measurement, read_measurement
from specdec_core.replay import Machine
from specdec_core.study.config.recorded import settings_key


def read_machine(path: Path) -> Machine:
    """Read the machine that `specdec measure --output` wrote a file on, named after the file; see `machine_of`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, is not a measurement, holds no drafter, or was measured with several
            sequences together, where a step takes another time.
    """
    found = read_measurement(path)
    if not found.drafters:
        raise ConfigError(f"{path}: no drafter was measured: it was stopped before the first was finished.")
    if found.batch_size != 1:
        raise ConfigError(
            f"{path} was measured with {found.batch_size} sequences together, and a replay decodes one at a time. "
            "Measure with --batch-size 1."
        )
    return machine_of(found, path.stem)


def machine_of(found: Measurement, name: str) -> Machine:
    """Return the machine of a measurement.

    T(k) and the overhead are those of the target, whatever drafter they were timed with: the median over the
    drafters that produce drafts of k tokens, or over all where none does. D(k) is each drafter's own.

    Args:
        found: A measurement of at least one drafter.
        name: Name of the machine.
    """
    return Machine(
        name,
        found.device,
        verify=tuple(map(median, verify_seconds(found))),
        overhead=median(_overhead(one) for one in found.drafters),
        draft={settings_key(one.settings, one.draft_sampling): one.seconds.draft for one in found.drafters},
    )


def verify_seconds(found: Measurement) -> list[list[float]]:
    """Return T(k) as it was timed with each drafter, for each k up to the longest draft of all."""
    longest = min(len(one.seconds.verify) for one in found.drafters)
    return [_timed(k, found.drafters) for k in range(longest)]


def _timed(k: int, drafters: Sequence[DrafterMeasurement]) -> list[float]:
    own = [one.seconds.verify[k] for one in drafters if k in one.timed]
    return own or [one.seconds.verify[k] for one in drafters]


def _overhead(one: DrafterMeasurement) -> float:
    """Return what a step took outside of both models; the same at every length."""
    seconds = one.seconds
    rows = zip(seconds.step, seconds.verify, seconds.draft, strict=True)
    return max(0.0, median(step - verify - draft for step, verify, draft in rows))
