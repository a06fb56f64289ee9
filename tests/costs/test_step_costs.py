"""Costs of steps, and what lies between those that are known."""

import math

import pytest

from specdec_core.costs.step_costs import StepCosts, interpolated
from specdec_core.interface import ConfigError


def test_a_step_is_both_models_and_the_rest():
    costs = StepCosts(verify=(4.0, 5.0, 6.0), draft=(0.0, 1.0, 2.0), overhead=0.25)
    assert costs.step == (4.25, 6.25, 8.25)
    assert costs.c == 0.25
    alone = StepCosts(verify=(4.0, 5.0), overhead=0.25)
    assert (alone.step, alone.c) == ((4.25, 5.25), 0.0)
    assert alone.with_drafter((0.0, 1.0)).step == (4.25, 6.25)


def test_a_file_holds_the_sums_for_its_readers():
    costs = StepCosts(verify=(4.0, 5.0), draft=(0.0, 1.0), overhead=0.25, verify_spread=(0.5, None))
    plain = costs.model_dump(mode="json")
    assert plain["step"] == [4.25, 6.25]
    assert StepCosts.model_validate(plain) == costs


def test_the_noise_of_a_step_is_that_of_both_models():
    costs = StepCosts(verify=(4.0, 4.0), overhead=0.0, verify_spread=(0.25, None))
    assert costs.noise == 0.25
    assert costs.with_drafter((4.0, 4.0), (0.5, 0.5)).noise == pytest.approx(math.hypot(1, 2) / 8)
    assert costs.with_drafter((0.0, 4.0)).noise == 0.25
    assert StepCosts(verify=(4.0,), overhead=0.0).noise is None


def test_lengths_without_times_are_refused():
    costs = StepCosts(verify=(4.0, 5.0), overhead=0.0)
    costs.check(0)
    costs.with_drafter((0.0, 1.0)).check(1)
    with pytest.raises(ConfigError, match=r"D\(k\) is known for no k. Measure with --gamma 1 or more"):
        costs.check(1)
    with pytest.raises(ConfigError, match=r"T\(k\) is known up to k = 1"):
        costs.with_drafter((0.0, 1.0, 2.0)).check(2)


def test_one_rule_for_what_lies_between_and_beyond():
    assert interpolated({0: 1.0, 2: 2.0, 5: 5.0}, 7) == pytest.approx((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    assert interpolated({5: 5.0, 0: 1.0, 2: 2.0}, 1) == (1.0, 1.5)
    assert interpolated({0: 1.0, 1: 1.5, 2: 1.4}, 4) == (1.0, 1.5, 1.4, 1.4, 1.4), "less for more is noise"
    assert interpolated({2: 3.0}, 4) == (3.0,) * 5
    assert interpolated({0: 1.0, 2: 2.0}, 4, slope=0.0) == (1.0, 1.5, 2.0, 2.0, 2.0)
    assert interpolated({0: 1.0}, 2, slope=0.25) == (1.0, 1.25, 1.5)
    assert interpolated({}, 3) == ()
