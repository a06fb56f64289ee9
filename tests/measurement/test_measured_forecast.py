"""The forecast from a measurement."""

from __future__ import annotations

import pytest

from specdec_core.costs import StepCosts, best_gamma, improvement_at_cost
from specdec_core.measurement.measurement_file import Acceptance, DrafterMeasurement
from specdec_core.theory.speed import walltime_improvement


def acceptance(rates, errors=None, **more):
    said = {"temperature": 1, "lenience": 1, "tokens": 100, "low": 0, "high": 1, **more}
    return Acceptance(alpha=rates[0], by_position=rates, by_position_error=errors or (), **said)


def measured(one, step, c=0.1):
    seconds = StepCosts(verify=step, overhead=0.0)
    return DrafterMeasurement(name="any", settings={}, acceptance=(one,), seconds=seconds, c=c)


def test_an_ideal_machine_gives_what_the_theorem_says():
    one = acceptance((0.8,) * 8)
    found = measured(one, tuple(1 + 0.1 * k for k in range(9))).forecast(one)
    assert found.best.gamma == found.optimal.gamma
    assert found.best.improvement_at_cost == pytest.approx(found.optimal.improvement)
    assert found.optimal.improvement == pytest.approx(walltime_improvement(0.8, found.optimal.gamma, 0.1))
    assert found.optimal.improvement == pytest.approx(
        max(walltime_improvement(0.8, gamma, 0.1) for gamma in range(9))
    )


def test_verification_that_is_not_flat_lowers_both():
    one = acceptance((0.8, 0.7, 0.6))
    step = (1.0, 1.6, 2.0, 2.8)
    found = measured(one, step).forecast(one)
    assert found.best.gamma == best_gamma((0.8, 0.7, 0.6), step) == 2
    assert found.best.improvement_at_cost == pytest.approx(improvement_at_cost((0.8, 0.7, 0.6), 2, step))
    assert found.best.improvement_at_cost < found.optimal.improvement


def test_a_drafter_that_does_not_pay_is_to_be_left_out():
    one = acceptance((0.1,))
    found = measured(one, (1.0, 2.0, 3.0)).forecast(one)
    assert (found.best.gamma, found.best.improvement_at_cost) == (0, 1.0)


def test_tokens_that_are_not_proposed_add_none_and_cost_none():
    one = acceptance((0.5, 0.8), proposed=(0.4, 0.5, 0.0), drafted=(0.4, 0.3, 0.0))
    assert one.rates(3) == pytest.approx((0.2, 0.4, 0.0))
    assert one.mean_seconds((1.0, 2.0, 4.0, 9.0)) == pytest.approx((1.0, 1.4, 2.0, 2.0))
    # With two rows, the longer draft counts.
    reach = 1 - 0.6**2
    assert one.mean_seconds((1.0, 2.0, 4.0, 9.0), 2)[1] == pytest.approx(1 + reach)
