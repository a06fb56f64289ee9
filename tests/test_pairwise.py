"""Pairwise selection leaves no pair of values out, and is much smaller than the product."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.pairwise import pairwise


@pytest.mark.parametrize("sizes", [(2, 2, 2), (12, 3, 2), (5, 4, 3, 2), (8, 8)])
def test_every_pair_occurs(sizes):
    factors = [[f"{name}{number}" for number in range(size)] for name, size in zip("abcd", sizes, strict=False)]
    chosen = pairwise(*factors)
    for first, second in combinations(range(len(sizes)), 2):
        assert {(row[first], row[second]) for row in chosen} == set(product(factors[first], factors[second]))
    largest, next_largest, *_ = sorted(sizes, reverse=True)
    assert len(chosen) <= 1.5 * largest * next_largest
    assert chosen == pairwise(*factors)
