"""Racing: find the fastest of many candidates from the seconds that each takes over the same texts.

Candidates are compared in rounds, each over more texts than the last. In every round the one with the least
seconds leads, and a candidate is stopped when it is clearly slower than the leader over the texts so far. All
candidates see the same texts, so a comparison is paired: what makes a text slow for both cancels.

The unit is a cluster, which is a prompt with all its texts: texts of one prompt resemble each other. With totals
x_i of a candidate and y_i of the leader in cluster i, the ratio is sum x / sum y, and its interval is Fieller's:
the set of all r for which Student's test does not reject that x - r y has mean 0. It assumes that prompts are
drawn independently from what will be decoded, and that means over prompts are nearly normal.

The candidate that is truly fastest is stopped only if a comparison with some other one errs. There are m - 1
others and R rounds, so each comparison may err with the probability `error` / (m - 1) / R (Bonferroni): whatever
the dependence between candidates and rounds, the fastest survives with probability 1 - `error` at least.

References:
    O. Maron, A. W. Moore: Hoeffding Races, NIPS 1993. M. Birattari et al.: A Racing Algorithm for Configuring
    Metaheuristics, GECCO 2002. K. Jamieson, A. Talwalkar: Non-stochastic Best Arm Identification and
    Hyperparameter Optimization, 2016 (arXiv 1502.07943), whose rounds these are.
    E. C. Fieller: Some Problems in Interval Estimation, Journal of the Royal Statistical Society B 16, 1954.
    M. Abramowitz, I. A. Stegun: Handbook of Mathematical Functions, 1964, equations 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Totals: TypeAlias = NDArray[np.float64]

FIRST_CLUSTERS = 8
"""Clusters of the first round; fewer say little about their spread."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two totals over the same clusters.

    Attributes:
        value: The ratio.
        low: Lower end of its interval; -inf if the clusters tell too little.
        high: Upper end of its interval; inf if the clusters tell too little.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """Candidates after a round.

    Attributes:
        leader: The candidate with the least total.
        ratios: Total of each candidate over that of the leader.
        stopped: The candidates that are clearly slower than the leader, in the order in which they were given.
    """

    leader: str
    ratios: Mapping[str, Ratio]
    stopped: tuple[str, ...]


def cluster_counts(clusters: int, first: int = FIRST_CLUSTERS) -> tuple[int, ...]:
    """Return how many clusters each round compares: twice as many as the one before, all in the last.

    Args:
        clusters: The number of clusters.
        first: Clusters of the first round.
    """
    counts = []
    count = first
    while count < clusters:
        counts.append(count)
        count *= 2
    return (*counts, clusters)


def comparison_error(error: float, candidates: int, rounds: int) -> float:
    """Return the probability with which one comparison may err, so that the whole race errs with `error` at most.

    Args:
        error: Probability with which the race may stop the fastest candidate.
        candidates: m, the number of candidates.
        rounds: R, the number of rounds.
    """
    return error / max(1, candidates - 1) / max(1, rounds)


def standing(totals: Mapping[str, Totals], error: float, margin: float = 0.0) -> Standing:
    """Compare candidates with the fastest of them.

    Args:
        totals: Seconds of each candidate in each cluster, `[clusters]` float64; the same clusters for all.
        error: Probability with which a comparison may err; see `comparison_error`.
        margin: A candidate is not stopped if it may be slower by less than this fraction. It covers what the
            texts do not: errors of the times of steps.
    """
    leader = min(totals, key=lambda name: float(totals[name].sum()))
    ratios = {name: fieller_interval(own, totals[leader], error) for name, own in totals.items()}
    stopped = tuple(name for name, ratio in ratios.items() if ratio.low > 1 + margin)
    return Standing(leader, ratios, stopped)


def fieller_interval(numerators: Totals, denominators: Totals, error: float = 0.025) -> Ratio:
    """Return the ratio of two totals over clusters, with Fieller's interval.

    Args:
        numerators: x, `[clusters]` float64.
        denominators: y, `[clusters]` float64, positive.
        error: Probability with which the ratio lies below the interval, and above it. The default gives a 95%
            confidence interval.

    Raises:
        ValueError: `numerators` is empty.
    """
    count = len(numerators)
    if not count:
        raise ValueError("a ratio needs at least one cluster")
    x, y = float(numerators.mean()), float(denominators.mean())
    if count < 2:
        return Ratio(x / y, -math.inf, math.inf)
    (var_x, both), (_, var_y) = np.cov(numerators, denominators).tolist()
    # The interval holds every r with (x - r y)^2 <= t^2 var(x - r y): where this parabola in r is not positive.
    scale = student_quantile(error, count - 1) ** 2 / count
    square, half, constant = y * y - scale * var_y, x * y - scale * both, x * x - scale * var_x
    if square <= 0:
        return Ratio(x / y, -math.inf, math.inf)
    width = math.sqrt(max(0.0, half * half - square * constant))
    return Ratio(x / y, (half - width) / square, (half + width) / square)


@lru_cache(maxsize=1024)
def student_quantile(error: float, freedom: int) -> float:
    """Return the t that Student's distribution exceeds with a given probability.

    Args:
        error: The probability, in (0, 0.5].
        freedom: Degrees of freedom, a whole number of at least 1.

    Raises:
        ValueError: One of them is out of range.
    """
    if not 0 < error <= 0.5 or freedom < 1:
        raise ValueError(f"no quantile for a probability of {error:g} with {freedom} degrees of freedom")
    low, high = 0.0, math.pi / 2
    for _ in range(200):  # bisection of the angle whose tangent is t over the root of the freedom
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _outside(middle, freedom) > 2 * error else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _outside(angle: float, freedom: int) -> float:
    """Return the probability that Student's variable is beyond +-sqrt(freedom) * tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    inside = math.fsum(_terms(cosine, odd, freedom - 2)) * sine
    return 1 - (2 / math.pi * (angle + inside) if odd else inside)


def _terms(cosine: float, first: int, last: int) -> Iterator[float]:
    """Yield the terms of equation 26.7.3 (odd powers of the cosine) or 26.7.4 (even ones)."""
    term = cosine**first
    for power in range(first, last + 1, 2):
        yield term
        term *= cosine * cosine * (power + 1) / (power + 2)
