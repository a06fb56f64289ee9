"""Which steps are timed."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_core.costs import measured_costs
from specdec_core.decoding.timing import CyclingGamma, watch_steps
from specdec_core.interface import BatchInfo
from specdec_core.interface.settings import SamplingSettings
from tests.lossless import PROMPT, small_target


def test_every_turn_has_every_length_and_goes_on_in_the_next_batch():
    controller = CyclingGamma(4, np.random.default_rng(0))
    info = BatchInfo(2, 4, (9, 9), False)
    asked = []
    for _ in range(4):
        session = controller.open(info)
        asked += [session.plan() for _ in range(5)]
    assert all(one == other for one, other in asked)
    turns = [tuple(one for one, _ in asked[start : start + 5]) for start in range(0, 20, 5)]
    assert all(sorted(turn) == [0, 1, 2, 3, 4] for turn in turns)
    assert len(set(turns)) > 1


@pytest.mark.parametrize(("gamma", "timings", "seed"), [(3, 3, 0), (1, 1, 5), (1, 1, 8)])
def test_steps_of_all_lengths_are_watched(device, gamma, timings, seed):
    done = []
    how = {"gamma": gamma, "timings": timings, "max_new_tokens": 16, "seed": seed}
    sampling = SamplingSettings()
    reports = watch_steps(small_target(device), [list(PROMPT)], sampling=sampling, advance=done.append, **how)
    assert len(reports) >= timings * (gamma + 1)
    assert all(one.step > 0 for one in reports), "the first step of a text reads the prompt"
    assert {max(one.outcome.drafted) for one in reports} == set(range(gamma + 1))
    assert measured_costs(reports, gamma).verify[0] > 0
    assert done[-1] == len(reports) + gamma + 1, "the first turn warms up"
