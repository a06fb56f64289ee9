"""Lenience: acceptance, the bound p(x) / l on every token, and the total variation, compared with the proofs."""

import pytest
import torch

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import draw
from specdec_core.verification import accept, accept_greedy
from specdec_core.verification.lenience import variation, within_greedy_lenience

N, V, K = 200_000, 5, 2
P = torch.tensor([[0.40, 0.05, 0.25, 0.30, 0.00], [0.10, 0.20, 0.30, 0.15, 0.25], [0.02, 0.08, 0.50, 0.00, 0.40]])
Q = torch.tensor([[0.10, 0.45, 0.00, 0.30, 0.15], [0.50, 0.05, 0.05, 0.40, 0.00]])


def lenient_acceptance(p, q, lenience):
    """Return sum_x min(p / l, q)."""
    return torch.minimum(p / torch.as_tensor(lenience, dtype=p.dtype)[..., None], q).sum(-1)


def uniforms(rows, columns, seed=0):
    return torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn_from_q():
    numbers = uniforms(N, K, seed=1)
    return torch.stack([draw(Q[i].expand(N, V), numbers[:, i]) for i in range(K)], dim=1)


def judge(tokens, lenience):
    proposal = Proposal(tokens, (K,) * N, Dense(Q.expand(N, K, V)))
    return accept(proposal, P.expand(N, -1, V), lenience, uniforms(N, K + 1))


def outcome(p, q, lenience):
    """Return the distribution of the token at a verified position, `[V]`, from the derivation in the module."""
    kept = torch.minimum(p / lenience, q)
    rest = (p - q).clamp(min=0)
    return kept + (1 - kept.sum()) * rest / rest.sum()


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.3, 0.1])
@pytest.mark.parametrize("each", [False, True])
def test_lenience_keeps_its_bound_and_gives_its_acceptance(lenience, each):
    tokens = drawn_from_q()
    l_row = torch.full((N, K) if each else (N,), lenience)
    verdict = judge(tokens, l_row)
    first = torch.where(verdict.accepted > 0, tokens[:, 0], verdict.token)
    frequency = torch.bincount(first, minlength=V) / N
    assert (frequency <= P[0] / lenience + 0.005).all()
    alpha = lenient_acceptance(P[0], Q[0], lenience).item()
    assert (verdict.accepted > 0).double().mean().item() == pytest.approx(alpha, abs=0.005)
    torch.testing.assert_close(frequency, outcome(P[0], Q[0], lenience), atol=0.005, rtol=0)


def test_each_position_has_a_lenience_of_its_own():
    tokens = drawn_from_q()
    l_row = torch.tensor([1.0, 0.2]).expand(N, K)
    verdict = judge(tokens, l_row)
    on = verdict.accepted > 0
    first = torch.where(on, tokens[:, 0], verdict.token)
    second = torch.where(verdict.accepted > 1, tokens[:, 1], verdict.token)[on]
    for sample, expected in ((first, P[0]), (second, outcome(P[1], Q[1], 0.2))):
        frequency = torch.bincount(sample, minlength=V) / len(sample)
        torch.testing.assert_close(frequency, expected, atol=0.006, rtol=0)


@pytest.mark.parametrize("seed", range(20))
def test_no_token_exceeds_its_bound_and_the_cost_is_the_acceptance_gained(seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.softmax(3 * torch.randn(2, 30, generator=generator, dtype=torch.float64), dim=1)
    for lenience in (0.9, 0.5, 0.2, 0.05):
        result = outcome(p, q, lenience)
        assert result.sum().item() == pytest.approx(1)
        assert (result <= p / lenience + 1e-12).all()
        gained = lenient_acceptance(p, q, lenience) - lenient_acceptance(p, q, 1.0)
        torch.testing.assert_close((result - p).abs().sum() / 2, gained)
        rest = (p - lenience * q).clamp(min=0)
        kept = torch.minimum(p / lenience, q)
        other = kept + (1 - kept.sum()) * rest / rest.sum()
        assert (other - p).abs().sum() / 2 >= gained - 1e-12


def test_every_form_of_q_has_the_deviation_of_the_same_dense_q():
    tokens = torch.tensor([[1, 3]])
    ids = torch.tensor([[[3, 1, 0, 4], [0, 3, 2, 1]]])
    listed = Q[None].gather(2, ids)
    whole = Q.gather(1, torch.arange(V).expand(K, V))[None]
    padded = Sparse(torch.cat([ids, ids[..., :1]], 2), torch.cat([listed, torch.zeros(1, K, 1)], 2))
    l_each = torch.tensor([[0.5, 0.25]])
    gained = [lenient_acceptance(P[i], Q[i], l_each[0, i]) - lenient_acceptance(P[i], Q[i], 1.0) for i in range(K)]
    expected = torch.stack(gained)[None]
    for q in (Dense(whole), Sparse(ids, listed), padded):
        torch.testing.assert_close(variation(Proposal(tokens, (2,), q), P[None], l_each), expected)
    certain = variation(Proposal(tokens, (2,), PointMass()), P[None], l_each)
    torch.testing.assert_close(certain, torch.tensor([[0.05, 0.45]]))


def test_a_lenience_too_small_for_float32_counts_as_the_smallest():
    l_each = torch.tensor([[1e-300, 1e-50]])
    for q, expected in ((Dense(Q[None]), [0.4, 0.65]), (PointMass(), [0.95, 0.85])):
        cost = variation(Proposal(torch.tensor([[1, 3]]), (2,), q), P[None], l_each)
        torch.testing.assert_close(cost, torch.tensor([expected]))


def test_greedy_lenience_compares_before_standardization():
    scores = torch.log(torch.tensor([[[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]])).repeat(3, 1, 1)
    tokens = torch.tensor([[1, 2], [1, 2], [0, 1]])
    granted = within_greedy_lenience(scores, tokens, torch.tensor([0.6 - 1e-6, 0.3, 1.0]))
    assert granted.tolist() == [[True, False], [True, True], [False, False]]
    each = torch.tensor([[0.5, 1.0], [1.0, 0.3], [1.0, 0.5]])
    assert within_greedy_lenience(scores, tokens, each).tolist() == [
        [True, False],
        [False, True],
        [False, True],
    ]


def test_lenience_never_accepts_a_token_of_probability_0():
    scores = torch.tensor([[[2.0, -torch.inf, 1.0]] * 2])
    granted = within_greedy_lenience(scores, torch.tensor([[1, 2]]), torch.tensor([[1e-50, 1e-50]]))
    assert granted.tolist() == [[False, True]]


def test_for_greedy_decoding_each_accepted_token_other_than_the_argmax_deviates_by_one():
    scores = torch.log(torch.tensor([[[0.5, 0.3, 0.2]] * 3]))
    proposal = Proposal(torch.tensor([[1, 2]]), (2,), PointMass())
    verdict = accept_greedy(proposal, scores, torch.tensor([[0.5, 0.5]]))
    assert verdict.accepted.tolist() == [1]
    assert verdict.deviation.tolist() == [[1.0, 0.0]]  # the second is not kept: the argmax stands in its place
