"""The odds in every form of q, and the interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.measurement.estimate import MIN_PROMPTS, Samples, estimate
from specdec_core.measurement.reject_all import RejectAllRule

V, K = 7, 3


def forms(generator):
    """The same q, on few ids, dense, sparse and with padding."""
    ids = torch.stack([torch.randperm(V, generator=generator)[:3].sort().values for _ in range(2 * K)]).view(
        2, K, 3
    )
    weights = torch.softmax(torch.randn(2, K, 3, generator=generator), dim=2)
    full = torch.zeros(2, K, V).scatter_(2, ids, weights)
    padded = Sparse(torch.cat([ids, ids[..., :1]], 2), torch.cat([weights, torch.zeros(2, K, 1)], 2))
    return ids[..., 1].contiguous(), [Dense(full), Sparse(ids, weights), padded]


def recorded(tokens, q, p=None, scores=None, leniences=(1.0, 0.5)):
    rule = RejectAllRule(leniences)
    proposal = Proposal(tokens, (K, K), q)
    uniforms = None if p is None else torch.full((2, K + 1), 0.5, dtype=torch.float64)
    result = rule.greedy(proposal, scores, None) if p is None else rule.sample(proposal, p, None, uniforms)
    assert result.accepted.tolist() == [0, 0]
    return rule.recorded()


def test_every_form_of_q_has_the_same_odds():
    generator = torch.Generator().manual_seed(1)
    tokens, same = forms(generator)
    p = torch.softmax(2 * torch.randn(2, K + 1, V, generator=generator), dim=2)
    q = same[0].probabilities
    for beta, own in (recorded(tokens, form, p) for form in same):
        for which, l_each in enumerate((1.0, 0.5)):
            assert beta[..., which] == pytest.approx(torch.minimum(p[:, :K] / l_each, q).sum(dim=2).numpy())
            ratio = p[:, :K].gather(2, tokens[..., None]) / q.gather(2, tokens[..., None]) / l_each
            assert own[..., which] == pytest.approx(ratio[..., 0].clamp(max=1).numpy())


def test_a_point_mass_has_the_odds_of_its_token():
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(V, (2, K), generator=generator)
    p = torch.softmax(2 * torch.randn(2, K + 1, V, generator=generator), dim=2)
    dense = Dense(torch.nn.functional.one_hot(tokens, V).float())
    for one, other in zip(recorded(tokens, PointMass(), p), recorded(tokens, dense, p), strict=True):
        assert one == pytest.approx(other)
    scores = p.log()
    for one, other in zip(
        recorded(tokens, PointMass(), None, scores), recorded(tokens, dense, None, scores), strict=True
    ):
        assert one == pytest.approx(other)


def test_where_p_is_one_hot_tokens_are_granted_or_not():
    scores = torch.tensor([0.0, 1.0, 0.9, -3.0, -3, -3, -3]).expand(2, K + 1, V)
    tokens = torch.tensor([[1, 2, 0], [3, 2, 1]])
    beta, own = recorded(tokens, PointMass(), None, scores, (1.0, 0.5))
    assert own[..., 0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert own[..., 1].tolist() == [[1, 1, 0], [0, 1, 1]]
    assert (beta == own).all()


def samples(beta, prompt, drafted=1):
    count = len(beta)
    full = np.full(count, drafted)
    shaped = np.asarray(beta, dtype=float).reshape(count, 1, 1)
    return Samples(np.asarray(prompt), np.ones(count, dtype=int), full, shaped, shaped)


def test_positions_are_weighted_by_the_chance_to_be_reached():
    own = np.array([[1.0, 0.5], [0.0, 0.5], [0.5, 1.0]]).reshape(3, 2, 1)
    beta = np.array([[0.9, 0.8], [0.1, 0.1], [0.5, 0.2]]).reshape(3, 2, 1)
    two = np.full(3, 2)
    found = estimate(Samples(np.arange(3), two, two, beta, own), 0, 1.0, 1.0, np.random.default_rng(0))
    assert found.by_position == pytest.approx((0.5, (1.0 * 0.8 + 0.5 * 0.2) / 1.5))
    # The second text has no token there, and the third was not asked for one.
    short = Samples(np.arange(3), np.array([2, 2, 1]), np.array([2, 1, 1]), beta, own)
    found = estimate(short, 0, 1.0, 1.0, np.random.default_rng(0))
    assert found.by_position == pytest.approx((0.5, 0.8))
    assert found.proposed == pytest.approx((1.0, 1.0))  # at the second text the first token has no chance
    assert found.drafted == pytest.approx((1.0, 0.5))


def interval(generator, prompts, length, spread):
    """An interval of alpha 0.6, where texts differ from one another."""
    center = np.clip(0.6 + spread * generator.standard_normal(prompts), 0, 1)
    beta = (generator.random((prompts, length)) < center[:, None]).ravel()
    found = estimate(samples(beta, np.repeat(np.arange(prompts), length)), 0, 1.0, 1.0, generator)
    return found.low, found.high


@pytest.mark.parametrize("prompts", [MIN_PROMPTS, 40])
def test_the_interval_covers_alpha_where_texts_differ(prompts):
    generator = np.random.default_rng(5)
    found = [interval(generator, prompts, 50, 0.12) for _ in range(160)]
    covered = np.mean([low <= 0.6 <= high for low, high in found])
    assert 0.91 < covered < 0.99
    # As if tokens were independent, it would be half as wide, and cover 70%.
    naive = 2 * 1.96 * np.sqrt(0.24 / (prompts * 50))
    assert np.mean([high - low for low, high in found]) > 1.5 * naive


@pytest.mark.parametrize("prompts", [1, 3])
def test_with_few_prompts_blocks_of_tokens_are_resampled(prompts):
    generator = np.random.default_rng(6)
    found = [interval(generator, prompts, 600 // prompts, 0.0) for _ in range(160)]
    assert 0.91 < np.mean([low <= 0.6 <= high for low, high in found]) < 0.99


def test_a_single_token_says_nothing():
    found = estimate(samples([1.0], [0]), 0, 1.0, 1.0, np.random.default_rng(0))
    assert (found.alpha, found.low, found.high) == (1.0, 0.0, 1.0)
