"""Sections 3.2, A.2 and A.5, beside the functions on tensors that do it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.interface import Dense, PointMass, Proposal
from specdec_core.theory.divergence import (
    acceptance_rate,
    greedy_acceptance_rate,
    lenient_acceptance_rate,
    lenient_deviation,
    lenient_distribution,
    lk_divergence,
    rejection_acceptance_rate,
)
from specdec_core.verification.acceptance import accept
from specdec_core.verification.lenience import variation, within_greedy_lenience

LENIENCES = [1.0, 0.7, 0.3, 0.01]


def random_pair(*shape, seed=0, alpha=0.4):
    """Distributions with near zeros among their probabilities."""
    rng = np.random.default_rng(seed)
    p, q = (rng.gamma(alpha, size=shape) for _ in range(2))
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


@st.composite
def pairs(draw):
    """Two distributions on the same few tokens, zeros among them."""
    size = draw(st.integers(1, 6))
    weights = st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any)
    p, q = (np.array(draw(weights), dtype=float) for _ in range(2))
    return p / p.sum(), q / q.sum()


P, Q = [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]


def test_by_hand():
    assert lk_divergence(P, Q) == pytest.approx(0.1)
    assert acceptance_rate(P, Q) == pytest.approx(0.9)
    assert lenient_acceptance_rate(P, Q, 0.9) == pytest.approx(0.5 / 0.9 + 0.3 + 0.1)
    assert lenient_deviation(P, Q, 0.9) == pytest.approx(0.5 / 0.9 - 0.5)
    assert rejection_acceptance_rate(P, Q) == pytest.approx(0.5)
    assert greedy_acceptance_rate(P, Q) == pytest.approx(0.6)
    assert greedy_acceptance_rate(P, Q, 0.6) == pytest.approx(0.9)
    assert greedy_acceptance_rate(P, Q, 0.4) == pytest.approx(1)


@given(pairs())
def test_lemma_3_3_and_corollary_3_4(pair):
    p, q = pair
    divergence = lk_divergence(p, q)
    assert divergence == pytest.approx(1 - np.minimum(p, q).sum())
    assert 0 <= divergence <= 1
    assert divergence == lk_divergence(q, p)
    assert acceptance_rate(p, q) == pytest.approx(1 - divergence)
    assert (divergence > 1e-12) == (not np.allclose(p, q, atol=1e-12))
    assert (divergence > 1 - 1e-12) == (not (p * q).any())


@given(pairs(), st.floats(0.01, 1))
def test_lenience_buys_acceptance_with_variation(pair, lenience):
    p, q = pair
    out = lenient_distribution(p, q, lenience)
    b, deviation = lenient_acceptance_rate(p, q, lenience), lenient_deviation(p, q, lenience)
    assert out.sum() == pytest.approx(1)
    assert (out <= p / lenience + 1e-12).all()
    assert np.abs(out - p).sum() / 2 == pytest.approx(deviation, abs=1e-12)
    assert b - acceptance_rate(p, q) == pytest.approx(deviation, abs=1e-12)
    assert b >= acceptance_rate(p, q)


@given(pairs())
def test_strict_sampling_gives_p(pair):
    p, q = pair
    assert lenient_distribution(p, q) == pytest.approx(p)
    assert lenient_deviation(p, q, 1) == 0
    assert lenient_acceptance_rate(p, q, 1) == acceptance_rate(p, q)


@given(pairs())
def test_rejection_sampling_never_accepts_more(pair):
    p, q = pair
    rejection = rejection_acceptance_rate(p, q)
    assert rejection <= acceptance_rate(p, q) + 1e-12
    assert (rejection > 0) == bool((q[p > 0] > 0).all())
    # The formula as it is printed.
    printed = sum(p_x * min(q_y / p_y for p_y, q_y in zip(p, q, strict=True) if p_y) for p_x in p)
    assert rejection == pytest.approx(printed)


@given(pairs())
def test_more_lenience_accepts_more(pair):
    p, q = pair
    for function in (lenient_acceptance_rate, greedy_acceptance_rate):
        rates = [function(p, q, lenience) for lenience in (1, 0.8, 0.5, 0.2, 0.05)]
        assert rates == sorted(rates)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_deviation_is_that_of_the_decoder(lenience):
    p, q = random_pair(2, 3, 7)
    tokens = torch.tensor([[0, 1, 2], [6, 3, 0]])
    proposal = Proposal(tokens, (3, 3), Dense(torch.tensor(q)))
    found = variation(proposal, torch.tensor(p), torch.full((2, 3), lenience, dtype=torch.float64))
    assert lenient_deviation(p, q, lenience) == pytest.approx(found.numpy(), abs=1e-6)
    one_hot = np.eye(7)[tokens.numpy()]
    found = variation(
        Proposal(tokens, (3, 3), PointMass()),
        torch.tensor(p),
        torch.full((2, 3), lenience, dtype=torch.float64),
    )
    assert lenient_deviation(p, one_hot, lenience) == pytest.approx(found.numpy(), abs=1e-12)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_argmax_acceptance_is_that_of_the_decoder(lenience):
    p, _ = random_pair(4, 3, 9, seed=5, alpha=2)
    scores = torch.tensor(p).log()
    tokens = torch.tensor(np.random.default_rng(1).integers(0, 9, (4, 3)))
    kept = within_greedy_lenience(scores, tokens, torch.full((4,), lenience)) | (tokens == scores.argmax(-1))
    found = greedy_acceptance_rate(p, np.eye(9)[tokens.numpy()], lenience)
    assert found.tolist() == kept.double().tolist()


def test_of_two_equal_maxima_strict_argmax_keeps_the_first():
    assert greedy_acceptance_rate([0.4, 0.4, 0.2], [0, 1, 0]) == 0
    assert greedy_acceptance_rate([0.4, 0.4, 0.2], [1, 0, 0]) == 1
    assert greedy_acceptance_rate([0.4, 0.4, 0.2], [0, 1, 0], 0.999) == 1


@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_algorithm_1_accepts_and_emits_what_is_expected(lenience):
    """Every (draft token, r) on a fine grid goes through the decoder's own rule, and is weighed."""
    p, q = (np.array(x) for x in random_pair(5, seed=3))
    grid = 4000
    r = (np.arange(grid) + 0.5) / grid
    tokens = torch.arange(5).repeat_interleave(grid)[:, None]
    uniforms = torch.tensor(np.stack([np.tile(r, 5), np.full(5 * grid, 0.5)], axis=1))
    verdict = accept(
        Proposal(tokens, (1,) * len(tokens), Dense(torch.tensor(q).expand(len(tokens), 1, 5).float())),
        torch.tensor(p).expand(len(tokens), 2, 5).float(),
        torch.full((len(tokens),), lenience),
        uniforms,
    )
    kept = verdict.accepted.reshape(5, grid).double().mean(dim=1).numpy()
    assert (q * kept).sum() == pytest.approx(float(lenient_acceptance_rate(p, q, lenience)), abs=1e-3)


def test_shapes():
    p, q = random_pair(2, 3, 5)
    for function in (lk_divergence, acceptance_rate, rejection_acceptance_rate, greedy_acceptance_rate):
        assert function(p, q).shape == (2, 3)
    shares = np.array([[1.0, 0.5, 0.2], [0.9, 0.1, 1.0]])
    by_prefix = lenient_acceptance_rate(p, q, shares)
    assert by_prefix[1, 1] == pytest.approx(lenient_acceptance_rate(p[1, 1], q[1, 1], 0.1))
    assert lenient_distribution(p, q, shares).shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("p", "q", "said"),
    [
        ([0.5, 0.5], [0.2, 0.3, 0.5], "p and q must have the same shape"),
        ([0.5, 0.4], P[:2], "p must sum to 1 over the vocabulary; it sums to 0.9"),
        (P, [1.2, -0.2, 0.0], "q must hold probabilities; given -0.2"),
        (P, [np.nan, 0.5, 0.5], "q must hold probabilities; given nan"),
        (0.5, Q, r"p must be \[..., V\]"),
    ],
)
def test_what_is_no_pair_of_distributions_is_refused(p, q, said):
    for function in (lk_divergence, acceptance_rate, rejection_acceptance_rate, lenient_distribution):
        with pytest.raises(ValueError, match=said):
            function(p, q)


@pytest.mark.parametrize("lenience", [0, 1.01, np.nan])
def test_lenience_out_of_range(lenience):
    for function in (lenient_acceptance_rate, lenient_deviation, lenient_distribution, greedy_acceptance_rate):
        with pytest.raises(ValueError, match=r"lenience must be in \(0, 1\]"):
            function(P, Q, lenience)
