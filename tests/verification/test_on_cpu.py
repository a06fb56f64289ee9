"""Algorithm 1 on a CPU gives what the tensor functions give, whose distribution the other tests prove."""

import pytest
import torch

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import MAX_UNIFORM
from specdec_core.verification import SpeculativeSampling, accept

B, K = 200, 3


def case(vocab, form, seed=0):
    """Return a ragged proposal, p and uniforms: p and q overlap, and both exclude tokens, as top-k does."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(B, K, vocab, generator=generator) ** 6
    p = torch.rand(B, K + 1, vocab, generator=generator)
    p[:, :K] *= q
    p[torch.rand(p.shape, generator=generator) < 0.2] = 0
    p[:, :, 0] += 0.01
    p[:40, :K] = q[:40]  # nothing is left after a rejection
    q, p = q / q.sum(2, keepdim=True), p / p.sum(2, keepdim=True)
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(B, K)
    uniforms = torch.rand(B, K + 1, generator=generator, dtype=torch.float64)
    uniforms[::5, :K] = 0.0
    uniforms[1::5, :K] = MAX_UNIFORM
    lengths = tuple(torch.randint(0, K + 1, (B,), generator=generator).tolist())
    forms = {"point": PointMass(), "dense": Dense(q), "sparse": sparse(q, generator)}
    return Proposal(tokens, lengths, forms[form]), p, uniforms


def sparse(q, generator):
    """Return q in its sparse form: the ids in any order, then one of them again, with probability 0."""
    ids = torch.stack([torch.randperm(q.shape[2], generator=generator) for _ in range(B * K)]).view(q.shape)
    again = ids.gather(2, torch.randint(q.shape[2], (B, K, 5), generator=generator))
    return Sparse(torch.cat([ids, again], dim=2), torch.cat([q.gather(2, ids), torch.zeros(B, K, 5)], dim=2))


def on_cpu(proposal, p, uniforms):
    return SpeculativeSampling().sample(proposal, p, None, uniforms)


def assert_equal(one, other):
    for field in ("accepted", "token", "sound"):
        assert getattr(one, field).dtype == getattr(other, field).dtype
        assert torch.equal(getattr(one, field), getattr(other, field)), field


@pytest.mark.parametrize("form", ["point", "dense", "sparse"])
@pytest.mark.parametrize("vocab", [7, 300])
def test_sampled(vocab, form):
    proposal, p, uniforms = case(vocab, form)
    together, given = accept(proposal, p, None, uniforms), p.clone()
    assert set(together.accepted.tolist()) == {0, 1, 2, 3}
    assert_equal(on_cpu(proposal, p, uniforms), together)
    assert torch.equal(p, given)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("vocab", [7, 300])
def test_a_draft_token_with_no_residual_that_p_excludes(vocab, form):
    _, p, _ = case(vocab, form)
    p[:, :, 1] = 0
    q = p[:, :K].clone()
    q = Dense(q) if form == "dense" else sparse(q, torch.Generator().manual_seed(2))
    proposal = Proposal(torch.ones(B, K, dtype=torch.long), (K,) * B, q)
    uniforms = torch.full((B, K + 1), 0.5, dtype=torch.float64)
    assert_equal(on_cpu(proposal, p, uniforms), accept(proposal, p, None, uniforms))


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("vocab", [7, 300])
def test_nan_in_p(vocab, form):
    proposal, p, uniforms = case(vocab, form)
    p[::2, 1] = torch.nan
    found, expected = on_cpu(proposal, p, uniforms), accept(proposal, p, None, uniforms)
    assert torch.equal(found.sound, expected.sound)
    assert not found.sound.all()
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.token[found.sound], expected.token[found.sound])


def test_an_empty_proposal():
    _, p, uniforms = case(300, "dense")
    empty = Proposal.empty(B)
    assert_equal(on_cpu(empty, p[:, :1], uniforms[:, :1]), accept(empty, p[:, :1], None, uniforms[:, :1]))
