"""Rules for tests: pairwise selection, support modules, and facts instead of whole sentences."""

import ast
import re
from collections.abc import Iterator
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


LONGEST = 16
"""Words of an expectation: facts, and no whole sentences."""


def test_assertions_pin_facts_and_no_whole_sentences():
    found = [
        f"{path.name}:{text.lineno}: {text.value}"
        for path in Path(__file__).parent.rglob("test_*.py")
        for part in _expectations(ast.parse(path.read_text("utf-8")))
        for text in ast.walk(part)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
        if len(re.findall(r"[A-Za-z']{2,}", text.value)) > LONGEST
    ]
    assert not found


def _expectations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is asserted, what an error must match, and the values of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "parametrize":
            yield from node.args[1:]
