"""Resampled units, such as prompts: intervals and tests of statistics of their sums. Imports no torch.

References:
    B. Efron, R. Tibshirani: An Introduction to the Bootstrap, 1993, chapters 6 and 13.
    T. Hesterberg: What Teachers Should Know about the Bootstrap, 2014 (arXiv 1411.5279), for small samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec_core.theory.intervals import student_tails, tail

RESAMPLES = 2000
"""Number of resamples."""
SEED = 0
"""Seed of their draws: equal numbers of units are resampled alike, and so are the runs of a comparison."""
MIN_PROMPTS = 6
"""Fewer prompts, or other units, test nothing: if two runs do not differ, all n differences have the same sign
with probability 2 / 2^n, which is 0.06 for 5 of them."""
_Floats = NDArray[np.float64]


def resamples(count: int) -> _Floats:
    """Return how often each unit is in each resample.

    Args:
        count: Number of units N.

    Returns:
        `[RESAMPLES, N]` float64; each row sums to N.
    """
    generator = np.random.default_rng(SEED)
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)


def resampled_interval(values: _Floats, count: int) -> tuple[float, float]:
    """Return the ends of the 95% confidence interval of a statistic, wide enough for few units.

    Args:
        values: `[RESAMPLES]`, the statistic of each resample; NaN where it has none.
        count: Number of units, at least 2.
    """
    low, high = np.nanquantile(values, [tail(count), 1 - tail(count)])
    return float(low), float(high)


def resampled_p(observed: float, values: _Floats, count: int) -> float | None:
    """Return the probability of a difference at least this far from 0, in either direction, by chance.

    It is that of Student's t with the standard error of the resamples: the share of resamples beyond 0 is too
    small for few units, and not below 1 / RESAMPLES for many. Whatever the resamples say, it is at least that of
    as many signs that agree.

    Args:
        observed: The difference of a statistic between two runs on the same units.
        values: `[RESAMPLES]`, the difference in each resample; NaN where there is none.
        count: Number of units.

    Returns:
        The p-value; None with fewer than `MIN_PROMPTS`.
    """
    if count < MIN_PROMPTS:
        return None
    error = float(np.nanstd(values)) * (count / (count - 1)) ** 0.5
    if abs(observed) < 1e-12:  # the rounding of sums
        return 1.0
    p = student_tails(abs(observed) / error, count - 1) if error else 0.0
    return max(p, 2.0 ** (1 - count))
