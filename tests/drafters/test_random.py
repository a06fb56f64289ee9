"""The random drafter: q is 1/V, whatever the settings."""

import pytest
import torch

from specdec_core.interface import Dense, TargetInfo
from specdec_drafters.random import RandomDrafter
from specdec_drafters.settings import RandomConfig
from tests.drafters.support import info_for, request_for

V = 7


@pytest.fixture
def drafter():
    return RandomDrafter(RandomConfig(), TargetInfo(V))


def test_q_is_one_over_v(drafter):
    proposal = drafter.open(info_for(2, V)).propose(request_for([[1], [2, 3]], [3, 1]))
    assert isinstance(proposal.q, Dense)
    assert proposal.lengths == (3, 1)
    torch.testing.assert_close(proposal.q.probabilities, torch.full((2, 3, V), 1 / V))
