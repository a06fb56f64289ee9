"""Estimates from independent units, such as prompts: confidence intervals and tests by Student's t; without torch.

References:
    W. G. Cochran: Sampling Techniques, 3rd edition, 1977, chapter 6: ratio estimators.
    Y. Benjamini, Y. Hochberg: Controlling the False Discovery Rate, 1995.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MIN_PROMPTS = 6
"""Fewer prompts, or other units, have no interval and test nothing."""


@dataclass(frozen=True)
class Estimate:
    """An estimate with its certainty.

    Attributes:
        value: The estimate.
        low: Lower end of its 95% confidence interval; None with fewer than `MIN_PROMPTS` units.
        high: Its upper end.
        p: Probability of an estimate at least this far from 0 by chance, if it should be 0; None as `low`.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def estimate(units: Floats) -> Estimate:
    """Return the mean of some units.

    Args:
        units: `[N]`, one value for each unit, at least one.
    """
    value = float(units.mean())
    if len(units) < MIN_PROMPTS:
        return Estimate(value)
    if np.ptp(units) <= 1e-9 * np.abs(units).max():  # equal up to rounding: no spread to compare with
        equal = bool(np.isclose(value, 0, atol=1e-9))
        return Estimate(value, value, value, 1.0 if equal else 2.0 ** (1 - len(units)))
    from scipy import stats  # takes a second to import

    found = stats.ttest_1samp(units, 0.0)
    interval = found.confidence_interval(0.95)
    return Estimate(value, float(interval.low), float(interval.high), float(found.pvalue))


def ratio_units(above: Sequence[Floats], below: Sequence[Floats]) -> Floats | None:
    """Return a ratio of sums as the mean of one value for each unit, which vary as the ratio does.

    They are the ratio r, linearized in its sums: r (1 + N (sum of a / A - sum of b / B)), where A and B are the
    sums of all a and b. The spread of their mean is that of a ratio estimator.

    Args:
        above: Arrays `[N]` whose sums are multiplied.
        below: As many arrays `[N]`, by whose sums is divided.

    Returns:
        `[N]`; None if a sum is not known, or one to divide by is 0.
    """
    over, under = np.array(above), np.array(below)  # [K, N]
    sums, totals = over.sum(axis=1), under.sum(axis=1)
    if np.isnan(sums).any() or not (totals > 0).all():  # NaN is not above 0
        return None
    if not sums.all():
        return np.zeros(over.shape[1])
    apart = (over / sums[:, None]).sum(axis=0) - (under / totals[:, None]).sum(axis=0)
    units: Floats = sums.prod() / totals.prod() * (1 + len(apart) * apart)
    return units


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for their number by Benjamini and Hochberg; None stays None and is not counted.

    Of the differences whose adjusted value is below 0.05, at most 5% are false alarms on average.
    """
    from scipy import stats

    known = [p for p in p_values if p is not None]
    found = iter(stats.false_discovery_control(known)) if known else iter(())
    return [None if p is None else float(next(found)) for p in p_values]
