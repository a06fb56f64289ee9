"""The expected tokens of a tree, and the best tree, against brute force."""

from __future__ import annotations

import random

import pytest

from specdec_core.costs import best_gamma, step_seconds
from specdec_core.interface import TokenTree
from specdec_core.theory import (
    best_tree,
    best_tree_at_cost,
    expected_tokens,
    expected_tree_tokens,
    tree_improvement,
    walltime_improvement,
)

RATES = ((0.5, 0.2, 0.1), (0.6, 0.1), (0.3, 0.3))


def all_trees(nodes):
    """Yield every tree with so many nodes, numbered level by level."""
    grown = [()]
    for node in range(nodes):
        grown = [(*tree, parent) for tree in grown for parent in range(tree[-1] if tree else -1, node)]
    for parents in grown:
        yield TokenTree(parents)


def simulated_tokens(tree, rates, generator, steps):
    """Draw which child is the accepted one, from the committed text down."""
    tokens = 0
    for _ in range(steps):
        node, depth = -1, 0
        while True:
            children = [n for n, parent in enumerate(tree.parents) if parent == node]
            row = rates[min(depth, len(rates) - 1)]
            number, tokens = generator.random(), tokens + 1
            for child, rate in zip(children, row, strict=False):
                if number < rate:
                    node, depth = child, depth + 1
                    break
                number -= rate
            else:
                break
    return tokens / steps


def test_expected_tokens_are_those_of_a_simulation():
    tree = TokenTree((-1, -1, -1, 0, 0, 1, 3, 3))
    found = simulated_tokens(tree, RATES, random.Random(3), 40_000)
    assert found == pytest.approx(expected_tree_tokens(tree, RATES), abs=0.02)


def test_a_line_has_the_tokens_of_equation_1():
    line = TokenTree((-1, 0, 1, 2))
    assert expected_tree_tokens(line, [[0.7]]) == pytest.approx(expected_tokens(0.7, 4))
    assert tree_improvement(line, [[0.7]], 0.1) == pytest.approx(walltime_improvement(0.7, 4, 0.1))


@pytest.mark.parametrize("nodes", range(7))
@pytest.mark.parametrize("depth", [1, 2, 6])
def test_no_tree_has_more_expected_tokens_than_the_best(nodes, depth):
    found = best_tree(RATES, nodes, depth)
    assert len(found) <= nodes
    assert found.depth <= depth
    possible = [expected_tree_tokens(tree, RATES) for tree in all_trees(nodes) if tree.depth <= depth]
    assert expected_tree_tokens(found, RATES) == pytest.approx(max(possible, default=1.0))


def test_the_best_tree_at_a_cost():
    verify = (1, 1.05, 1.1, 1.3, 1.6, 2.0, 2.5)
    found = best_tree_at_cost(RATES, 6, 6, 0.1, verify)
    trees = [tree for nodes in range(1, 7) for tree in all_trees(nodes)]
    most = max(tree_improvement(tree, RATES, 0.1, verify) for tree in trees)
    assert tree_improvement(found, RATES, 0.1, verify) == pytest.approx(most)


def test_one_rank_gives_the_best_line():
    found = best_tree_at_cost([[0.8]], 16, 16, 0.05)
    assert found.parents == tuple(range(-1, best_gamma((0.8,), step_seconds(0.05, 16)) - 1))


def test_no_tree_where_none_pays():
    assert len(best_tree_at_cost([[0.1, 0.1]], 8, 8, 0.5)) == 0


@pytest.mark.parametrize("rates", [[], [[]], [[1.5]], [[-0.1]], [[0.7, 0.7]], [[float("nan")]]])
def test_rates_that_are_no_probabilities(rates):
    with pytest.raises(ValueError, match="rates="):
        best_tree(rates, 3, 3)


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 0, -1)])
def test_a_tree_that_is_none(parents):
    with pytest.raises(ValueError, match="expected numbers in ascending order"):
        TokenTree(parents)
