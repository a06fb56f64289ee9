"""The machine that a measurement was taken on, for replays. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.file import DrafterMeasurement, Measurement, read_measurement
from specdec_core.replay import Machine
from specdec_core.study.config.recorded import settings_key


def read_machine(path: Path) -> Machine:
    """Read the machine that `specdec measure --output` wrote a file on, named after the file.

    T(k) is the target's, so that of all drafters in the file together is used: the median. D(k) is each drafter's
    own. The overhead is what steps took outside both.

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
    return Machine(
        path.stem,
        found.device,
        verify=_verify(found),
        overhead=median(_overhead(one) for one in found.drafters),
        draft={settings_key(one.settings, one.draft_sampling): one.seconds.draft for one in found.drafters},
    )


def _verify(found: Measurement) -> tuple[float, ...]:
    """Return T(k) up to the longest draft that all drafters were measured with."""
    return tuple(median(column) for column in zip(*(one.seconds.verify for one in found.drafters), strict=False))


def _overhead(one: DrafterMeasurement) -> float:
    """Return what a step took outside of both models; the same at every length."""
    seconds = one.seconds
    rows = zip(seconds.step, seconds.verify, seconds.draft, strict=True)
    return max(0.0, median(step - verify - draft for step, verify, draft in rows))
