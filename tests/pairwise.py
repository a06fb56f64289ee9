"""Pairwise selection: a few combinations in which every two values of different factors meet."""

from collections.abc import Hashable, Iterable
from itertools import combinations, product

import pytest


def pairwise(*factors: Iterable[Hashable]) -> list[tuple[Hashable, ...]]:
    """Return combinations of one value per factor, so that every pair of values occurs in one of them.

    A mistake that needs two settings to show is found as surely as with the full product, at a fraction of its
    cost. The selection is greedy and always the same.
    """
    lists = [list(factor) for factor in factors]
    numbered = [[(number, value) for value in values] for number, values in enumerate(lists)]
    unmet = {pair: None for two in combinations(numbered, 2) for pair in product(*two)}
    chosen = []
    while unmet:
        (first, a), (second, b) = next(iter(unmet))
        row = {first: a, second: b}
        for factor in range(len(lists)):
            if factor not in row:
                row[factor] = _best(lists[factor], factor, row, unmet)
        combination = sorted(row.items())
        for pair in combinations(combination, 2):
            unmet.pop(pair, None)
        chosen.append(tuple(value for _, value in combination))
    return chosen


def _best(values, factor, row, unmet):
    """Return the value with which a row holds most pairs that have not met."""

    def gain(value):
        return sum((min(other, (factor, value)), max(other, (factor, value))) in unmet for other in row.items())

    return max(values, key=gain)


def some(cases: Iterable[object], count: int) -> list[object]:
    """Return parameters of a test, of which `count`, spread evenly, run by default, and all in the slow tests.

    Args:
        cases: A tuple for a test of several parameters, or a value for a test of one.
        count: How many run by default.
    """
    listed = list(cases)
    default = {round(number * len(listed) / count) for number in range(count)}
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if n in default else pytest.mark.slow
        )
        for n, case in enumerate(listed)
    ]
