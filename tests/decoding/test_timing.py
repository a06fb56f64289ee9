"""Which steps are timed."""

import pytest

from specdec_core.costs.step_costs import measured_costs
from specdec_core.decoding.timing import watch_steps
from specdec_core.interface.settings import SamplingSettings
from tests.lossless import PROMPT, small_target


@pytest.mark.parametrize(("gamma", "timings", "seed"), [(3, 3, 0), (1, 1, 5), (1, 1, 8)])
def test_steps_of_all_lengths_are_watched(device, gamma, timings, seed):
    done = []
    how = {"gamma": gamma, "timings": timings, "max_new_tokens": 16, "seed": seed}
    sampling = SamplingSettings()
    reports = watch_steps(small_target(device), [list(PROMPT)], sampling=sampling, advance=done.append, **how)
    assert len(reports) >= timings * (gamma + 1)
    assert all(one.step > 0 for one in reports), "the first step of a text reads the prompt"
    lengths = [max(one.outcome.drafted) for one in reports]
    assert set(lengths) == set(range(gamma + 1))
    assert measured_costs(reports, gamma).verify[0] > 0
    assert done[-1] == len(reports) + gamma + 1, "the first turn warms up"
