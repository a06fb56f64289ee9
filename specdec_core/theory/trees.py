"""Which token tree to draft: the expected tokens of a tree, and the best tree for a number of nodes.

Sequoia's model: of the children of an accepted node, the one of rank r is the accepted one with a probability that
depends on r (and here on its depth), whatever the path to it. The expected number of tokens of a step is then

    1 + sum over the nodes of the product of the rates along the path to each,

which generalizes equation (1) of Leviathan et al.: a line has one child of rank 0 at each depth. The best tree for
a number of nodes follows by dynamic programming. Importing this imports no torch.

References:
    Chen et al. 2024: Sequoia (arXiv 2402.12374), section 4.1.
    Leviathan, Kalman, Matias 2023 (arXiv 2211.17192), equation (1) and Theorem 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from specdec_core.interface import TokenTree
from specdec_core.theory.ranges import check, check_each, check_gamma

Rates: TypeAlias = Sequence[Sequence[float]]
"""For each depth, the probability that the child of each rank is the accepted one; the last row holds below."""
VerifyCost: TypeAlias = Sequence[float] | None
"""T(k) / T(0) for k = 0, 1, ... nodes; None is the assumption of Theorem 3.8, 1."""


def expected_tree_tokens(tree: TokenTree, rates: Rates) -> float:
    """Return the expected number of tokens of a step that verifies a tree, recovered or bonus token included.

    Args:
        tree: The tree.
        rates: `rates[d][r]`, the probability that of the children at depth d of an accepted node (at depth 0: of
            the committed text) the one of rank r is accepted. 0 for ranks that are not listed.

    Raises:
        ValueError: Rates are missing, or are not probabilities.
    """
    table = _checked(rates)
    reached: list[float] = []
    for parent, depth, rank in zip(tree.parents, tree.depths, tree.ranks, strict=True):
        reached.append((1.0 if parent < 0 else reached[parent]) * _rate(table, depth, rank))
    return 1.0 + sum(reached)


def best_tree(rates: Rates, nodes: int, depth: int) -> TokenTree:
    """Return the tree with the most expected tokens.

    Args:
        rates: As for `expected_tree_tokens`.
        nodes: Maximum number of nodes, at least 0.
        depth: Maximum length of a path, at least 0.

    Returns:
        The tree; it has fewer nodes where more would add nothing.

    Raises:
        ValueError: An argument is out of range.

    References:
        Sequoia, section 4.1: the subproblems here are the children from a rank on, at a depth, with a number of
        nodes for them and what is below them.
    """
    check_gamma(nodes, name="nodes")
    check_gamma(depth, name="depth")
    return _grown(_planner(_checked(rates), depth), nodes, depth)


_Plan: TypeAlias = Callable[[int, int, int], tuple[float, int]]
"""From a depth, a rank and a number of nodes for the children from this rank on and all below: the most tokens
these add, and the number of nodes that the first child takes, itself included."""


def _planner(table: Sequence[Sequence[float]], depth: int) -> _Plan:
    @cache
    def plan(level: int, rank: int, nodes: int) -> tuple[float, int]:
        rate = _rate(table, level, rank)
        if nodes == 0 or level == depth or rate == 0:
            return 0.0, 0
        return max(
            (
                (rate * (1 + plan(level + 1, 0, own - 1)[0]) + plan(level, rank + 1, nodes - own)[0], own)
                for own in range(1, nodes + 1)
            ),
            key=lambda option: (option[0], -option[1]),
        )

    return plan


def _grown(plan: _Plan, nodes: int, depth: int) -> TokenTree:
    """Return the planned tree, numbered level by level."""
    parents: list[int] = []
    level = [(-1, nodes)]  # each node, and the number of nodes below it
    for at in range(depth):
        following = []
        for parent, left in level:
            rank = 0
            while own := plan(at, rank, left)[1]:
                following.append((len(parents), own - 1))
                parents.append(parent)
                left, rank = left - own, rank + 1
        level = following
    return TokenTree(tuple(parents))


def tree_improvement(tree: TokenTree, rates: Rates, c: float, verify_cost: VerifyCost = None) -> float:
    """Return the expected factor by which decoding gets faster: tokens / (depth * c + T(nodes) / T(0)).

    Each level of a tree takes one pass of the drafter, as a token of a line does.

    Args:
        tree: The tree.
        rates: As for `expected_tree_tokens`.
        c: Cost coefficient (Definition 3.7), at least 0.
        verify_cost: T(k) / T(0) for each k up to the number of nodes. By default 1, as Theorem 3.8 assumes.

    Raises:
        ValueError: An argument is out of range.
    """
    check("c", c)
    cost = 1.0
    if verify_cost is not None:
        check_each("verify_cost", verify_cost, above=True)
        check_gamma(len(tree), len(verify_cost) - 1, "the last k of verify_cost", name="the number of nodes")
        cost = verify_cost[len(tree)]
    return expected_tree_tokens(tree, rates) / (tree.depth * c + cost)


def best_tree_at_cost(rates: Rates, nodes: int, depth: int, c: float, verify_cost: VerifyCost = None) -> TokenTree:
    """Return the tree with the largest `tree_improvement`, the smallest of equals; empty if no tree pays.

    Args:
        rates: As for `expected_tree_tokens`.
        nodes: Maximum number of nodes, at least 0.
        depth: Maximum length of a path, at least 0.
        c: Cost coefficient, at least 0.
        verify_cost: As for `tree_improvement`.

    Raises:
        ValueError: An argument is out of range.
    """
    check_gamma(nodes, name="nodes")
    check_gamma(depth, name="depth")
    found, most = TokenTree(()), 1.0
    for levels in range(1, min(depth, nodes) + 1):
        plan = _planner(_checked(rates), levels)
        for count in range(levels, nodes + 1):
            tree = _grown(plan, count, levels)
            improvement = tree_improvement(tree, rates, c, verify_cost)
            if improvement > most * (1 + 1e-12):
                found, most = tree, improvement
    return found


def _checked(rates: Rates) -> tuple[tuple[float, ...], ...]:
    table = tuple(tuple(map(float, row)) for row in rates)
    if not table or not all(table) or not all(0 <= rate <= 1 for row in table for rate in row):
        raise ValueError(f"rates={rates!r}: expected, for each depth, the probabilities from 0 to 1 of each rank.")
    if any(sum(row) > 1 + 1e-6 for row in table):
        raise ValueError(f"rates={rates!r}: at most one child is accepted, so a row sums to at most 1.")
    return table


def _rate(table: Sequence[Sequence[float]], depth: int, rank: int) -> float:
    row = table[min(depth, len(table) - 1)]
    return row[rank] if rank < len(row) else 0.0
