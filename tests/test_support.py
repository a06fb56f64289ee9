"""What tests share: pairwise selection, and support modules instead of imports from other tests."""

from __future__ import annotations

import re
from itertools import combinations, product
from pathlib import Path

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


def test_no_test_imports_another():
    imports = re.compile(r"^\s*(from|import) tests\.(\w+\.)*test_", re.MULTILINE)
    assert not [path for path in Path(__file__).parent.rglob("*.py") if imports.search(path.read_text("utf-8"))]
