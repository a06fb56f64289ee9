"""Algorithm 1 as a pure function, compared with exact probabilities."""

import itertools

import pytest
import torch
from scipy.stats import chisquare

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import MAX_UNIFORM, draw
from specdec_core.verification import accept, accept_greedy, dense, density, residual

N, V, K = 200_000, 5, 2
P = torch.tensor([[0.40, 0.05, 0.25, 0.30, 0.00], [0.10, 0.20, 0.30, 0.15, 0.25], [0.02, 0.08, 0.50, 0.00, 0.40]])
Q = torch.tensor([[0.10, 0.45, 0.00, 0.30, 0.15], [0.50, 0.05, 0.05, 0.40, 0.00]])


def uniforms(rows, columns, seed=0):
    return torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def forms(form):
    """Return draft tokens `[N, K]` and their q in one of the forms."""
    if form == "point":
        return torch.tensor([1, 3]).expand(N, K), PointMass()
    numbers = uniforms(N, K, 1)
    tokens = torch.stack([draw(Q[i].expand(N, V), numbers[:, i]) for i in range(K)], dim=1)
    if form == "dense":
        return tokens, Dense(Q.expand(N, K, V))
    return tokens, sparse_q(N, padding=2 if form == "padded" else 0)


def sparse_q(rows, padding=0):
    """Return Q as a sparse q; `padding` further entries repeat an id with probability 0."""
    ids = torch.tensor([[3, 1, 0, 4], [0, 3, 2, 1]])
    listed = torch.cat([Q.gather(1, ids), torch.zeros(K, padding)], dim=1)
    ids = torch.cat([ids, ids[:, 1:2].expand(K, padding)], dim=1)
    return Sparse(ids.expand(rows, *ids.shape), listed.expand(rows, *ids.shape))


def outcome_counts(proposal, verdict):
    """Return the tokens at the first position, and at the second where the first draft token was accepted."""
    first = torch.where(verdict.accepted > 0, proposal.tokens[:, 0], verdict.token)
    second = torch.where(verdict.accepted > 1, proposal.tokens[:, 1], verdict.token)
    return first, second[verdict.accepted > 0]


@pytest.mark.parametrize("form", ["point", "sparse", "dense", "padded"])
def test_each_position_has_the_targets_distribution(form):
    tokens, q = forms(form)
    proposal = Proposal(tokens, (K,) * N, q)
    verdict = accept(proposal, P.expand(N, K + 1, V), torch.ones(N), uniforms(N, K + 1))
    first, second = outcome_counts(proposal, verdict)
    third = verdict.token[verdict.accepted == 2]
    for sample, p in zip((first, second, third), P, strict=True):
        counts = torch.bincount(sample, minlength=V)
        assert counts[p == 0].sum() == 0
        assert chisquare(counts[p > 0], p[p > 0].double() / p.double().sum() * len(sample)).pvalue > 1e-4


@pytest.mark.parametrize("form", ["sparse", "dense", "padded"])
def test_acceptance_rate_is_the_overlap_of_p_and_q(form):
    tokens, q = forms(form)
    verdict = accept(Proposal(tokens, (K,) * N, q), P.expand(N, K + 1, V), torch.ones(N), uniforms(N, K + 1))
    beta = torch.minimum(P[0], Q[0]).sum().item()  # Theorem 3.5
    assert (verdict.accepted > 0).double().mean().item() == pytest.approx(beta, abs=0.005)


def test_the_three_forms_agree_on_the_same_draft():
    tokens = torch.tensor([[1, 3], [2, 0], [4, 1]])
    one_hot = torch.nn.functional.one_hot(tokens, V).float()
    sparse = Sparse(tokens[..., None], torch.ones(3, 2, 1))
    numbers = uniforms(3, K + 1)
    verdicts = [
        accept(Proposal(tokens, (2, 1, 0), q), P.expand(3, K + 1, V), torch.ones(3), numbers)
        for q in (PointMass(), sparse, Dense(one_hot))
    ]
    for verdict in verdicts[1:]:
        assert torch.equal(verdict.accepted, verdicts[0].accepted)
        assert torch.equal(verdict.token, verdicts[0].token)


def random_sparse(rows, width, listed, vocab, seed):
    """Return a random sparse q with 1 to `listed` ids at each position, in any order, and padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(rows, width, listed, dtype=torch.long)
    own = torch.zeros(rows, width, listed)
    for row, index in itertools.product(range(rows), range(width)):
        count = int(torch.randint(1, listed + 1, (1,), generator=generator))
        weights = torch.rand(count, generator=generator) * 5
        ids[row, index, :count] = torch.randperm(vocab, generator=generator)[:count]
        ids[row, index, count:] = ids[row, index, int(torch.randint(count, (1,), generator=generator))]
        own[row, index, :count] = weights / weights.sum()
    return Sparse(ids, own)


@pytest.mark.parametrize("lenience", [1.0, 0.5])
@pytest.mark.parametrize("listed", [1, 9])
def test_a_sparse_q_gives_the_result_of_the_same_dense_q(listed, lenience):
    rows, width, vocab = 3, 4, 40
    kept = set()
    for seed in range(60):
        q = random_sparse(rows, width, listed, vocab, seed)
        generator = torch.Generator().manual_seed(seed)
        whole = dense(q, torch.zeros(rows, width, dtype=torch.long), vocab)
        torch.testing.assert_close(whole.sum(dim=2), torch.ones(rows, width))
        tokens = torch.stack([draw(whole[:, k], uniforms(rows, 1, seed + 99 * k)[:, 0]) for k in range(width)], 1)
        assert torch.equal(density(q, tokens), density(Dense(whole), tokens))
        p = torch.softmax(torch.randn(rows, width + 1, vocab, generator=generator) * 2, dim=2)
        p[:, :width] = (p[:, :width] + whole) / 2  # so that some drafts are kept
        lengths = tuple(torch.randint(0, width + 1, (rows,), generator=generator).tolist())
        l_row = torch.tensor([lenience, 1.0, lenience])
        one, other = (
            accept(Proposal(tokens, lengths, form), p, l_row, uniforms(rows, width + 1, seed))
            for form in (q, Dense(whole))
        )
        assert torch.equal(one.accepted, other.accepted)
        assert torch.equal(one.token, other.token)
        kept.update(zip(one.accepted.tolist(), lengths, strict=True))
    assert len(kept) > 8  # rejections at several positions, and drafts kept whole


def test_the_residual_of_a_sparse_q_is_that_of_the_same_dense_q():
    q = random_sparse(3, 2, 6, 20, seed=3)
    tokens, position = torch.zeros(3, 2, dtype=torch.long), torch.tensor([0, 1, 1])
    p = torch.softmax(torch.randn(3, 20, generator=torch.Generator().manual_seed(1)), dim=1)
    share = torch.tensor([1.0, 0.4, 0.0])
    whole = dense(q, tokens, 20)
    found = residual(p, Proposal(tokens, (2,) * 3, q), position, share)
    expected = (p - share[:, None] * whole[torch.arange(3), position]).clamp(min=0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    assert torch.equal(found < 1e-20, expected == 0)
    torch.testing.assert_close(found[2], p[2])


def test_every_form_of_q_can_be_made_dense():
    tokens = torch.tensor([[1, 3]])
    assert torch.equal(dense(PointMass(), tokens, 4), torch.nn.functional.one_hot(tokens, 4).float())
    sparse = Sparse(torch.tensor([[[3, 1], [3, 3]]]), torch.tensor([[[0.25, 0.75], [1.0, 0.0]]]))
    expected = torch.tensor([[[0, 0.75, 0, 0.25], [0, 0, 0, 1.0]]])
    assert torch.equal(dense(sparse, tokens, 4), expected)
    assert dense(Dense(expected), tokens, 4).data_ptr() == expected.data_ptr()
    torch.testing.assert_close(dense(sparse_q(1, padding=3), tokens, V), Q[None])
    longer = Dense(torch.cat([expected, expected], dim=1))
    assert torch.equal(dense(longer, tokens, 4), expected)


def test_greedy_is_a_one_hot_distribution():
    best = torch.tensor([2, 0, 3])
    p = torch.nn.functional.one_hot(best, V).float().expand(3, 3, V)
    tokens = torch.tensor([[2, 0], [2, 1], [1, 0]])
    verdict = accept(Proposal(tokens, (2, 2, 2), PointMass()), p, torch.ones(3), uniforms(3, 3))
    # The fast way: count equal tokens from the left, then take the argmax.
    equal = (tokens == best[:2]).long().cumprod(dim=1).sum(dim=1)
    assert verdict.accepted.tolist() == equal.tolist() == [2, 1, 0]
    assert verdict.token.tolist() == best[equal].tolist()


def test_tokens_beyond_a_drafts_length_have_no_influence():
    tokens = torch.tensor([[0, 0], [0, 0], [0, 0]])
    q = Dense(torch.tensor([1.0, 0, 0, 0, 0]).expand(3, 2, V))
    p = torch.tensor([1.0, 0, 0, 0, 0]).expand(3, 3, V)
    verdict = accept(Proposal(tokens, (2, 1, 0), q), p, torch.ones(3), uniforms(3, 3))
    assert verdict.accepted.tolist() == [2, 1, 0]
    poisoned = Proposal(tokens, (0, 0, 0), Dense(torch.full((3, 2, V), 1e6)))
    assert accept(poisoned, p, torch.ones(3), uniforms(3, 3)).token.tolist() == [0, 0, 0]


@pytest.mark.parametrize("form", ["point", "sparse", "dense", "padded"])
def test_a_sequence_alone_gives_what_it_gives_in_a_batch(form):
    rows = 60
    tokens, q = forms(form)
    numbers = uniforms(rows, K + 1)
    numbers[::3, :K] *= 0.04  # whole drafts are accepted

    def of(part):
        parts = {name: value[part] for name, value in vars(q).items()}
        count = len(tokens[:rows][part])
        proposal = Proposal(tokens[:rows][part], (K,) * count, type(q)(**parts))
        return accept(proposal, P.expand(count, 3, V), None, numbers[part])

    together = of(slice(0, rows))
    assert together.accepted.unique().tolist() == [0, 1, 2]
    for row in range(rows):
        alone = of(slice(row, row + 1))
        assert (alone.accepted.item(), alone.token.item()) == (together.accepted[row], together.token[row])


def test_an_empty_proposal_draws_from_p():
    p = P[0].expand(N, 1, V)
    verdict = accept(Proposal.empty(N), p, torch.ones(N), uniforms(N, 1))
    counts = torch.bincount(verdict.token, minlength=V)
    assert counts[4] == 0
    assert chisquare(counts[:4], P[0, :4].double() / P[0].double().sum() * N).pvalue > 1e-4


def test_without_a_residual_the_recovered_token_is_drawn_from_p():
    # p and q equal as far as floats can tell, and a comparison that rounding turned to a rejection.
    q = Dense((P[0] * (1 + 1e-6)).expand(N, 1, V))
    numbers = uniforms(N, 2)
    numbers[:, 0] = MAX_UNIFORM
    verdict = accept(Proposal(torch.full((N, 1), 3), (1,) * N, q), P[0].expand(N, 2, V), None, numbers)
    assert not verdict.accepted.any()
    assert verdict.sound.all()
    counts = torch.bincount(verdict.token, minlength=V)
    assert chisquare(counts[:4], P[0, :4].double() / P[0].double().sum() * N).pvalue > 1e-4
    assert counts[4] == 0


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_draft_token_that_p_rules_out_is_never_the_recovered_one(form):
    # q gives it so little that the rest of q equals p in float32: nothing is left of p, and x is no draw from it.
    q, p = torch.tensor([[[0.25, 0.75, 0.0, 1e-9]]]), torch.tensor([[[0.25, 0.75, 0.0, 0.0]] * 2])
    ids = torch.tensor([[[0, 1, 3]]])
    own = Dense(q) if form == "dense" else Sparse(ids, q.gather(2, ids))
    verdict = accept(Proposal(torch.tensor([[3]]), (1,), own), p, torch.ones(1), torch.full((1, 2), 0.5).double())
    assert (verdict.accepted.item(), verdict.token.item(), verdict.sound.item()) == (0, 1, True)


@pytest.mark.parametrize("form", ["point", "dense"])
def test_a_token_that_p_rules_out_is_rejected_whatever_the_uniform(form):
    p, tokens = torch.tensor([[[0.5, 0.5, 0.0]] * 2]), torch.tensor([[2]])
    q = PointMass() if form == "point" else Dense(torch.tensor([[[0.2, 0.2, 0.6]]]))
    verdict = accept(Proposal(tokens, (1,), q), p, torch.ones(1), torch.zeros(1, 2, dtype=torch.float64))
    assert verdict.accepted.tolist() == [0]
    assert verdict.token.tolist() == [0]


def test_nan_in_p_is_reported():
    p = P.expand(2, K + 1, V).clone()
    p[1, 1] = float("nan")
    tokens = torch.tensor([[0, 2], [0, 2]])
    verdict = accept(Proposal(tokens, (2, 2), PointMass()), p, torch.ones(2), torch.zeros(2, K + 1))
    assert verdict.sound.tolist() == [True, False]
    assert accept_greedy(Proposal(tokens, (2, 2), PointMass()), p, None).sound.tolist() == [True, False]


def test_a_p_of_zeros_is_reported_where_nothing_was_drafted():
    p = torch.stack([torch.full((1, V), 1 / V), torch.zeros(1, V)])
    verdict = accept(Proposal.empty(2), p, None, torch.full((2, 1), 0.5, dtype=torch.float64))
    assert verdict.sound.tolist() == [True, False]


def test_comparing_tokens_equals_sampling_with_a_one_hot_p():
    generator = torch.Generator().manual_seed(9)
    scores = torch.randn(500, K + 1, V, generator=generator)
    tokens = torch.randint(0, V, (500, K), generator=generator)
    lengths = tuple(torch.randint(0, K + 1, (500,), generator=generator).tolist())
    p = torch.nn.functional.one_hot(scores.argmax(dim=2), V).float()
    q = Dense(torch.softmax(torch.randn(500, K, V, generator=generator), dim=2))
    for form in (PointMass(), q):
        proposal = Proposal(tokens, lengths, form)
        slow = accept(proposal, p, None, uniforms(500, K + 1))
        fast = accept_greedy(proposal, scores, None)
        assert torch.equal(slow.accepted, fast.accepted)
        assert torch.equal(slow.token, fast.token)
        assert fast.deviation is None


@pytest.mark.parametrize("each_position", [False, True])
def test_greedy_lenience_accepts_what_is_probable_enough_and_nothing_after_a_rejection(each_position):
    generator = torch.Generator().manual_seed(10)
    scores = 2 * torch.randn(500, K + 1, V, generator=generator)
    tokens = torch.randint(0, V, (500, K), generator=generator)
    lengths = tuple(torch.randint(0, K + 1, (500,), generator=generator).tolist())
    lenience = torch.rand(500, K if each_position else 1, generator=generator)
    result = accept_greedy(
        Proposal(tokens, lengths, PointMass()), scores, lenience if each_position else lenience[:, 0]
    )
    p, best = torch.softmax(scores, dim=2), scores.argmax(dim=2)
    for row, length in enumerate(lengths):
        accepted = 0
        for index in range(length):
            token, l_each = tokens[row, index], lenience[row, index if each_position else 0]
            if token != best[row, index] and p[row, index, token] < l_each * p[row, index].max():
                break
            assert result.deviation[row, index] == (token != best[row, index])
            accepted += 1
        assert result.accepted[row] == accepted
        assert result.token[row] == best[row, accepted]
    assert (result.accepted > 0).sum() > 50


def test_sparse_q_is_zero_for_ids_it_does_not_list():
    q = Sparse(torch.tensor([[[3, 1]]]), torch.tensor([[[0.25, 0.75]]]))
    assert density(q, torch.tensor([[1]])).item() == 0.75
    assert density(q, torch.tensor([[2]])).item() == 0


def test_draw_never_returns_an_index_of_weight_zero():
    weights = torch.tensor([[0.0, 1e-30, 0.0, 1.0, 0.0]]).expand(4, 5)
    numbers = torch.tensor([0.0, 0.5, MAX_UNIFORM, 1e-40], dtype=torch.float64)
    assert draw(weights, numbers).tolist() == [1, 3, 3, 1]
