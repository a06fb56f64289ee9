"""The rule against the conformance kit, and what it accepts."""

import torch
from specdec_floor import Floor, FloorConfig

from specdec_core.interface import Dense, Proposal
from specdec_core.testing import RuleKit


class TestFloor(RuleKit):
    plugin = "floor"


def test_it_accepts_what_is_probable_enough() -> None:
    p = torch.tensor([[[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]])
    for token, accepted in ((0, 1), (1, 1), (2, 0)):
        proposal = Proposal(torch.tensor([[token]]), (1,), Dense(torch.full((1, 1, 3), 1 / 3)))
        numbers = torch.full((1, 2), 0.1, dtype=torch.float64)
        answer = Floor(FloorConfig(share=0.5)).sample(proposal, p, None, numbers)
        assert answer.accepted.tolist() == [accepted]
