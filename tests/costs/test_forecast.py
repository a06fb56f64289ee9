"""All that section 3 says of a drafter, in one place."""

import pytest

from specdec_core.costs.forecast import forecast, improvement_at_cost
from specdec_core.costs.step_costs import step_seconds
from specdec_core.theory.speed import operations_increase, walltime_improvement


def test_every_gamma_has_what_the_formulas_give():
    result = forecast(0.7, 0.05, c_hat=0.01)
    assert [row.gamma for row in result.gammas] == [*range(9)]
    for row in result.gammas:
        assert row.improvement == walltime_improvement(0.7, row.gamma, 0.05)
        assert row.operations == operations_increase(0.7, row.gamma, 0.01)
        assert row.tokens == pytest.approx(sum(0.7**i for i in range(row.gamma + 1)))
        assert row.improvement_at_cost is None
    assert result.best == result.optimal
    assert result.optimal.gamma == max(result.gammas, key=lambda row: row.improvement).gamma


def test_what_is_asked_for_and_what_is_best_are_shown_with_their_neighbors():
    assert [row.gamma for row in forecast(0.9, 0.02, gamma=30).gammas[9:]] == [18, 19, 20, 29, 30, 31]
    assert [row.gamma for row in forecast(0.9, 0.02, gamma=4, max_gamma=5).gammas] == [*range(6)]
    assert forecast(0.9, 0.02, max_gamma=5).optimal.gamma == 5


def test_seconds_decide_and_limit():
    seconds = step_seconds(0.1, 4, [1, 1, 1, 2, 3])
    result = forecast(0.8, 0.1, seconds=seconds)
    assert result.max_gamma == 4
    assert (result.best.gamma, result.optimal.gamma) == (2, 4)
    for row in result.gammas:
        assert row.improvement_at_cost == improvement_at_cost((0.8,), row.gamma, seconds)
    assert forecast(0.8, 0.1, seconds=seconds, max_gamma=1).best.gamma == 1


def test_a_gamma_beyond_the_limit():
    with pytest.raises(ValueError, match=r"^gamma must be at most 4, the largest gamma considered; given 5"):
        forecast(0.8, 0.1, gamma=5, seconds=step_seconds(0.1, 4))
    with pytest.raises(ValueError, match=r"^max_gamma must be a whole number"):
        forecast(0.8, 0.1, max_gamma=-1)
