"""What Python decides from the target's best tokens is what the rule decides from its scores."""

import pytest
import torch

from specdec_core.decoding.answer import answer_on_cpu, decide, fetch
from specdec_core.interface import PointMass, Proposal
from specdec_core.verification import SpeculativeSampling

B, K, V = 200, 3, 7
SHAPES = {"line": None, "tree": (-1, -1, 1), "bush": (-1, 0, 0)}


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_drafts_are_followed_as_by_the_rule(shape):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(B, K + 1, V, generator=generator)
    parents = None if SHAPES[shape] is None else torch.tensor(SHAPES[shape]).expand(B, K)
    before = torch.arange(K) if parents is None else parents + 1
    tokens = torch.randint(0, V, (B, K), generator=generator)
    best = scores.argmax(2).gather(1, before.expand(B, K))
    tokens = torch.where(torch.rand(B, K, generator=generator) < 0.7, best, tokens)
    scores[3::7, 2, 4] = torch.nan
    scores[4::7, 0] = -torch.inf
    lengths = tuple(torch.randint(0, K + 1, (B,), generator=generator).tolist())
    proposal, rule = Proposal(tokens, lengths, PointMass(), parents), SpeculativeSampling()

    found = fetch(proposal, decide(rule, proposal, scores, None, None))
    assert found == fetch(proposal, rule.greedy(proposal, scores, None))
    assert found == answer_on_cpu(proposal, scores, [], None)
    assert set(found.accepted) == set(range({"line": 3, "tree": 2, "bush": 2}[shape] + 1))
    assert not all(found.sound)
