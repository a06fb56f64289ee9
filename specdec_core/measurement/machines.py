"""The machine that a measurement was taken on, for replays. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.file import DrafterMeasurement, Measurement, StepSeconds, read_measurement
from specdec_core.replay import Machine
from specdec_core.study.config.recorded import settings_key
from specdec_core.theory.intervals import relative_spread


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
    lengths = range(min(len(one.seconds.verify) for one in found.drafters))
    by_key = {settings_key(one.settings, one.draft_sampling): one.seconds for one in found.drafters}
    return Machine(
        name,
        found.device,
        verify=tuple(median(one.verify[k] for one in _timed(k, found.drafters)) for k in lengths),
        overhead=median(_overhead(one) for one in found.drafters),
        draft={key: one.draft for key, one in by_key.items()},
        verify_spread=tuple(_spread(k, _timed(k, found.drafters)) for k in lengths),
        draft_spread={key: one.draft_spread for key, one in by_key.items()},
    )


def _timed(k: int, drafters: Sequence[DrafterMeasurement]) -> list[StepSeconds]:
    """Return the times with the drafters that produce drafts of k tokens, or with all where none does."""
    own = [one.seconds for one in drafters if k in one.timed]
    return own or [one.seconds for one in drafters]


def _spread(k: int, timed: Sequence[StepSeconds]) -> float | None:
    """Return how well T(k) is known: what drafters disagree by, or with a single one what its timings do."""
    if len(timed) == 1:
        return timed[0].verify_spread[k] if timed[0].verify_spread else None
    values = [one.verify[k] for one in timed]
    return relative_spread(values) if median(values) else None


def _overhead(one: DrafterMeasurement) -> float:
    """Return what a step took outside of both models; the same at every length."""
    seconds = one.seconds
    rows = zip(seconds.step, seconds.verify, seconds.draft, strict=True)
    return max(0.0, median(step - verify - draft for step, verify, draft in rows))
