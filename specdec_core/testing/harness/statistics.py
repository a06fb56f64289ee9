"""Chi-square tests of samples against the distributions they should come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from scipy.stats import chi2

SUSPICIOUS = 1e-6
"""A check fails below this p-value.

A kit runs about forty such tests, so a correct plugin fails one of them in fewer than 1 of 10^4 kits. All random
numbers have seeds: it fails always or never.
"""
UNREMARKABLE = 0.2
"""A sequential test accepts a sample at this p-value, and doubles a sample whose p-value is smaller.

A deviation that a sample four times as large would reveal is caught by the first look in about 9 of 10 cases.
"""

_Tokens: TypeAlias = tuple[int, ...]
_MIN_EXPECTED = 5.0
"""Outcomes with a smaller expected count share a bin."""


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> tuple[float, int]:
    """Return Pearson's statistic and its degrees of freedom; rare outcomes share a bin.

    The statistic is infinite where an impossible outcome was observed.

    Args:
        observed: Count of each outcome.
        expected: Expected count of each outcome; has the same sum.
    """
    if any(count and not mean for count, mean in zip(observed, expected, strict=True)):
        return math.inf, 1
    pairs = [(count, mean) for count, mean in zip(observed, expected, strict=True) if mean >= _MIN_EXPECTED]
    rest = sum(observed) - sum(count for count, _ in pairs), sum(expected) - sum(mean for _, mean in pairs)
    if rest[1] >= _MIN_EXPECTED or (rest[1] > 1e-9 and not pairs):
        pairs.append(rest)
    elif pairs and (abs(rest[0]) > 1e-9 or rest[1] > 1e-9):
        pairs[-1] = pairs[-1][0] + rest[0], pairs[-1][1] + rest[1]
    return sum((count - mean) ** 2 / mean for count, mean in pairs), max(len(pairs) - 1, 0)


def p_of_groups(groups: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the joint p-value of independent groups, each a pair of observed and expected counts."""
    statistic, freedom = 0.0, 0
    for observed, expected in groups:
        own, degrees = chi_square(observed, expected)
        statistic, freedom = statistic + own, freedom + degrees
    return float(chi2.sf(statistic, freedom)) if freedom else 1.0


def p_of_sequences(seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]) -> float:
    """Return the p-value of a sample of sequences; 0 if it has a sequence of probability 0.

    Tests the first token, the first two, and so on. The smallest p-value counts, multiplied by the number of tests
    (Bonferroni): an error at one position stands out where fewer outcomes share the sample.

    Args:
        seen: Count of each sequence.
        expected: Probability of each sequence.
    """
    if set(seen) - set(expected):
        return 0.0
    by_length = [list(counts.values()) for counts in _by_prefix(seen, expected)]
    p_values = [p_of_groups([([count for count, _ in one], [mean for _, mean in one])]) for one in by_length]
    return min(1.0, len(p_values) * min(p_values))


def _by_prefix(
    seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]
) -> list[dict[_Tokens, tuple[int, float]]]:
    """Return the count of each first token and its expected count, then those of the first two, and so on."""
    total, found = sum(seen.values()), []
    for length in range(1, max(map(len, [*expected, *seen])) + 1):
        counts: dict[_Tokens, tuple[int, float]] = {}
        for key in sorted({*seen, *expected}):
            count, mean = counts.get(key[:length], (0, 0.0))
            counts[key[:length]] = count + seen.get(key, 0), mean + total * expected.get(key, 0.0)
        found.append(counts)
    return found


def farthest(seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]) -> tuple[_Tokens, int, float]:
    """Return the prefix whose count deviates most, with its count and its expected count."""
    worst = -1.0
    found: tuple[_Tokens, int, float] = (), 0, 0.0
    for counts in _by_prefix(seen, expected):
        for key, (count, mean) in sorted(counts.items()):
            # A few occurrences of something rare say little; a single one of something impossible says all.
            distance = math.inf if count and not mean else (count - mean) ** 2 / max(mean, _MIN_EXPECTED)
            if distance > worst:
                worst, found = distance, (key, count, mean)
    return found
