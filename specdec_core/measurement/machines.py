"""The machine that a measurement was taken on, for replays. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from specdec_core.costs import Machine, StepCosts
from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.measurement_file import Measurement, read_measurement
from specdec_core.study.config.study import settings_key
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
    each = [one.seconds for one in found.drafters]
    by_length = [_timed(k, each) for k in range(min(len(one.verify) for one in each))]
    target = StepCosts(
        verify=tuple(median(one.verify[k] for one in timed) for k, timed in enumerate(by_length)),
        overhead=median(one.overhead for one in each),
        verify_spread=tuple(_spread(k, timed) for k, timed in enumerate(by_length)),
    )
    drafters = {
        settings_key(one.settings, one.draft_sampling): target.with_drafter(
            one.seconds.draft, one.seconds.draft_spread
        )
        for one in found.drafters
    }
    return Machine(name, found.device, target, drafters, found.batch_size)


def _timed(k: int, every: Sequence[StepCosts]) -> list[StepCosts]:
    """Return the costs with the drafters that produce drafts of k tokens, or with all where none does."""
    return [one for one in every if k in one.timed] or list(every)


def _spread(k: int, timed: Sequence[StepCosts]) -> float | None:
    """Return how well T(k) is known: what drafters disagree by, or with a single one what its timings do."""
    if len(timed) == 1:
        return timed[0].verify_spread[k] if timed[0].verify_spread else None
    values = [one.verify[k] for one in timed]
    return relative_spread(values) if median(values) else None
