"""Confidence intervals for small samples.

References:
    T. Hesterberg: What Teachers Should Know about the Bootstrap, 2014 (arXiv 1411.5279).
    W. J. Conover: Practical Nonparametric Statistics, 3rd edition, 1999, section 3.2: confidence intervals for a
    quantile.
    W. G. Cochran: Sampling Techniques, 3rd edition, 1977, chapter 6: ratio estimators.
"""

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist, median

MAX_RANGE = 8
"""The interval of the median is the range of up to so many values; of more it leaves out extremes."""


def tail(count: int) -> float:
    """Return the quantile at which the percentile interval of `count` resampled units ends, below 0.025.

    The plain bootstrap interval is too narrow for few units, like one that uses a normal quantile instead of
    Student's t. This widens it accordingly (Hesterberg's "expanded percentile").

    Args:
        count: Number of units, at least 2.
    """
    return NormalDist().cdf(-math.sqrt(count / (count - 1)) * _student(count - 1))


def _student(freedom: int) -> float:
    """Return the 97.5% quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[float, float] | None:
    """Return the 95% confidence interval of a ratio of two sums, of which terms of one cluster go together.

    The sums of each cluster are the units of a ratio estimator r, and its variance is that of their residuals
    a - r b over the square of the sum of all b.

    Args:
        numerators: The terms a, such as the tokens of each text.
        denominators: The terms b, such as the steps of each text; their sum is not 0.
        clusters: What each term belongs to, such as its prompt.

    Returns:
        The ends; None for fewer than two clusters, whose spread is not known.
    """
    sums: dict[Hashable, tuple[float, float]] = {}
    for a, b, cluster in zip(numerators, denominators, clusters, strict=True):
        before = sums.get(cluster, (0.0, 0.0))
        sums[cluster] = (before[0] + a, before[1] + b)
    count = len(sums)
    if count < 2:
        return None
    whole = math.fsum(b for _, b in sums.values())
    ratio = math.fsum(a for a, _ in sums.values()) / whole
    squares = math.fsum((a - ratio * b) ** 2 for a, b in sums.values())
    half = _student(count - 1) * math.sqrt(count / (count - 1) * squares) / whole
    return ratio - half, ratio + half


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return an interval for the median of what the values are drawn from, whatever its distribution.

    A value is above the median with probability 1/2, so the number of values above it is binomial. The interval
    ends at the innermost values that still hold the median with 95% probability: the second smallest and largest
    of nine, for instance. Up to eight values it is their range, which holds the median with 75% probability for
    three values, 94% for five, and 99% for eight.

    Args:
        values: Independent measurements.

    Returns:
        The ends; None for fewer than two values, whose spread is not known.
    """
    count = len(values)
    if count < 2:
        return None
    ordered, dropped = sorted(values), _dropped(count)
    return ordered[dropped], ordered[-1 - dropped]


def _dropped(count: int) -> int:
    """Return how many of some values the interval of the median leaves out at each end."""
    from scipy.special import bdtr

    too_many = next(dropped for dropped in range(count) if 2 * bdtr(dropped, count, 0.5) > 0.05)
    return max(0, too_many - 1)


def relative_spread(values: Sequence[float]) -> float | None:
    """Return half the width of `median_interval` over the median; None if the interval is not known.

    Args:
        values: Independent measurements, all positive.
    """
    interval = median_interval(values)
    return None if interval is None else (interval[1] - interval[0]) / (2 * median(values))


def relative_spread_of_mean(values: Sequence[float]) -> float | None:
    """Return half the 95% confidence interval of a mean over the mean; None for fewer than two values.

    Args:
        values: Independent measurements, whose sum is positive.
    """
    interval = ratio_interval(values, [1.0] * len(values), range(len(values)))
    return None if interval is None else (interval[1] - interval[0]) / (interval[1] + interval[0])
