"""Acceptance of whole drafts, against the paper's example and against the rules themselves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from specdec_core.testing.harness.rule_distribution import deviation_of, models, step_of
from specdec_core.theory import (
    acceptance_rate,
    allowed_acceptance,
    block_acceptance,
    rejection_acceptance,
    rejection_acceptance_rate,
    token_acceptance,
    transport_bound,
)
from specdec_core.verification import SpeculativeSampling
from specdec_plugins.rules.block import BlockRule
from specdec_plugins.rules.config import BlockRuleConfig, RejectionRuleConfig
from specdec_plugins.rules.rejection import RejectionRule


def as_block(levels):
    """Return the distributions of a harness as the theory takes them."""
    vocab_size = levels[0].shape[-1]
    return [one.double().numpy().reshape((vocab_size,) * (position + 1)) for position, one in enumerate(levels)]


def test_the_example_of_the_paper():
    # Section 1 of arXiv 2403.10444: context-free models on two tokens.
    p = [np.array([1, 2]) / 3, np.full((2, 2), [1 / 3, 2 / 3])]
    q = [np.array([2, 1]) / 3, np.full((2, 2), [2 / 3, 1 / 3])]
    assert token_acceptance(p, q).sum() == pytest.approx(10 / 9)
    assert block_acceptance(p, q).sum() == pytest.approx(11 / 9)
    assert transport_bound(p, q).sum() == pytest.approx(12 / 9)
    assert rejection_acceptance(p, q).sum() == pytest.approx(1 / 2 + 1 / 4)


@pytest.mark.parametrize("seed", range(12))
def test_rules_are_in_order_and_below_the_bound(seed):
    pair = models(3, 1 + seed % 3, seed)
    p, q = as_block(pair.p), as_block(pair.q)
    found = [rule(p, q) for rule in (rejection_acceptance, token_acceptance, block_acceptance, transport_bound)]
    for less, more in pairwise(found):
        assert (less <= more + 1e-6).all()
    # Of one token, Algorithm 1 reaches the bound.
    assert found[1][0] == pytest.approx(found[3][0]) == pytest.approx(float(acceptance_rate(p[0], q[0])))
    assert found[0][0] == pytest.approx(float(rejection_acceptance_rate(p[0], q[0])))


@pytest.mark.parametrize(
    ("gamma", "seed"), [(2, 0), *(pytest.param(3, seed, marks=pytest.mark.slow) for seed in range(3))]
)
def test_the_rules_reach_what_theory_says(gamma, seed):
    pair = models(3, gamma, seed)
    p, q = as_block(pair.p), as_block(pair.q)
    step = step_of(pair, "dense")
    for rule, theory in (
        (SpeculativeSampling(), token_acceptance),
        (BlockRule(BlockRuleConfig()), block_acceptance),
        (RejectionRule(RejectionRuleConfig()), rejection_acceptance),
    ):
        reached = deviation_of(step, rule.sample(step.proposal, step.p, None, step.uniforms)).accepted
        assert reached == pytest.approx(theory(p, q).sum(), abs=3e-3)


def test_what_is_accepted_beyond_the_bound_is_deviation():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), 50), rng.dirichlet(np.ones(5), 50)
    accepted, deviation = allowed_acceptance(p, q, rng.random((50, 5)) < 0.6)
    assert (accepted - deviation <= acceptance_rate(p, q) + 1e-12).all()
    accepted, deviation = allowed_acceptance(p, q, np.ones((50, 5), dtype=bool))
    assert np.allclose(accepted, 1)
    assert np.allclose(deviation, 1 - acceptance_rate(p, q))


@pytest.mark.parametrize(
    ("p", "q", "said"),
    [
        ([[0.5, 0.5]], [[0.5, 0.5], [[0.5, 0.5]] * 2], "p must have an array for each of q; given 1 and 2"),
        (
            [[0.5, 0.5], [0.5, 0.5]],
            [[0.5, 0.5], [0.5, 0.5]],
            r"must have 2 axes of 2 tokens each; given shape \[2\]",
        ),
        ([[0.5, 0.6]], [[0.5, 0.5]], "p must sum to 1"),
    ],
)
def test_what_is_no_block_is_refused(p, q, said):
    with pytest.raises(ValueError, match=said):
        block_acceptance(p, q)
