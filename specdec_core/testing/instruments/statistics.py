"""Chi-square tests of what was drawn against what it should have been drawn from.

Torch has the incomplete gamma function that the p-value needs, so that nothing else has to be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

SUSPICIOUS = 1e-6
"""The p-value below which a check fails.

A kit makes some forty such tests, so that a right plugin fails one of them in fewer than 1 in 10^4 kits; as all
random numbers have seeds, it does so always or never.
"""

_LEAST = 5.0
"""Outcomes that are expected less often than this share a bin."""


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> tuple[float, int]:
    """Return Pearson's statistic and its degrees of freedom; rare outcomes share a bin.

    Args:
        observed: How often each outcome was seen.
        expected: How often it was to be expected; sums to the same.
    """
    pairs = [(seen, wanted) for seen, wanted in zip(observed, expected, strict=True) if wanted >= _LEAST]
    rest = sum(observed) - sum(seen for seen, _ in pairs), sum(expected) - sum(wanted for _, wanted in pairs)
    if rest[1] >= _LEAST or (rest[1] > 1e-9 and not pairs):
        pairs.append(rest)
    elif pairs and (abs(rest[0]) > 1e-9 or rest[1] > 1e-9):
        pairs[-1] = pairs[-1][0] + rest[0], pairs[-1][1] + rest[1]
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs), max(len(pairs) - 1, 0)


def p_value(statistic: float, freedom: int) -> float:
    """Return the probability that chi-square with so many degrees of freedom is at least this large."""
    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def p_of_groups(groups: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the p-value of independent groups taken together, each of observed and expected counts."""
    statistic, freedom = 0.0, 0
    for observed, expected in groups:
        own, degrees = chi_square(observed, expected)
        statistic, freedom = statistic + own, freedom + degrees
    return p_value(statistic, freedom)


def p_of_sequences(seen: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float]) -> float:
    """Return the p-value of sequences against their probabilities; 0 where something impossible was seen.

    The first token, the first two and so on are tested each by themselves, and the smallest p-value counts (times
    their number): what is wrong with one position stands out where fewer outcomes share the sample.

    Args:
        seen: How often each sequence was drawn.
        expected: The probability of each.
    """
    if set(seen) - set(expected):
        return 0.0
    longest = max(map(len, expected))
    return min(1.0, longest * min(_of_prefixes(seen, expected, length) for length in range(1, longest + 1)))


def _of_prefixes(
    seen: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float], length: int
) -> float:
    """Return the p-value of the first `length` tokens."""
    wanted: dict[tuple[int, ...], float] = {}
    counts: dict[tuple[int, ...], int] = {}
    total = sum(seen.values())
    for key, probability in expected.items():
        wanted[key[:length]] = wanted.get(key[:length], 0.0) + probability * total
    for key, count in seen.items():
        counts[key[:length]] = counts.get(key[:length], 0) + count
    return p_of_groups([([counts.get(key, 0) for key in wanted], list(wanted.values()))])


def farthest(
    seen: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float]
) -> tuple[tuple[int, ...], int, float]:
    """Return the beginning of sequences that stands out most, how often it was seen, and was to be expected."""
    total = sum(seen.values())
    worst: tuple[float, tuple[tuple[int, ...], int, float]] = -1.0, ((), 0, 0.0)
    for length in range(1, max(map(len, [*expected, *seen])) + 1):
        counts: dict[tuple[int, ...], tuple[int, float]] = {}
        for key in {*seen, *expected}:
            one, two = counts.get(key[:length], (0, 0.0))
            counts[key[:length]] = one + seen.get(key, 0), two + total * expected.get(key, 0.0)
        for key, (count, wanted) in counts.items():
            distance = (count - wanted) ** 2 / max(wanted, 1e-3)
            if distance > worst[0]:
                worst = distance, (key, count, wanted)
    return worst[1]
