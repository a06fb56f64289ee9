"""Acceptance by position, and verification that is not flat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.costs.forecast import best_gamma, improvement_at_cost
from specdec_core.costs.step_costs import step_seconds
from specdec_core.theory.speed import expected_tokens, expected_tokens_by_position, walltime_improvement

rates = st.lists(st.floats(0, 1), min_size=1, max_size=6)
seconds = st.lists(st.floats(0.01, 10), min_size=1, max_size=12)


def test_tokens_by_position():
    assert expected_tokens_by_position([0.5, 0.8, 0.1], 0) == 1
    assert expected_tokens_by_position([0.5, 0.8, 0.1], 2) == pytest.approx(1 + 0.5 + 0.5 * 0.8)
    # The last rate holds for the positions behind it.
    assert expected_tokens_by_position([0.5, 0.8], 4) == pytest.approx(1 + 0.5 + 0.4 + 0.32 + 0.256)


@given(st.floats(0, 1), st.integers(0, 30))
def test_with_one_rate_it_is_equation_1(alpha, gamma):
    assert expected_tokens_by_position([alpha], gamma) == pytest.approx(expected_tokens(alpha, gamma), rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 2), st.integers(0, 20))
def test_with_flat_times_it_is_theorem_3_8(alpha, c, gamma):
    times = step_seconds(c, 20)
    assert improvement_at_cost([alpha], gamma, times) == pytest.approx(walltime_improvement(alpha, gamma, c))


@given(rates, seconds)
def test_the_best_gamma_is_the_best_of_all(rates, seconds):
    factors = [improvement_at_cost(rates, gamma, seconds) for gamma in range(len(seconds))]
    found = best_gamma(rates, seconds)
    assert factors[found] == pytest.approx(max(factors))
    assert all(factor < factors[found] * (1 + 1e-12) for factor in factors[:found])


def test_the_best_gamma_may_lie_behind_a_jump():
    # One peak at 1 and, behind a jump of the target's matrix product, a higher one at 4.
    times = [1.0, 1.1, 1.9, 1.9, 1.9, 3.0]
    assert improvement_at_cost([0.9], 1, times) > improvement_at_cost([0.9], 2, times)
    assert best_gamma([0.9], times) == 4


def test_of_equals_the_smallest():
    assert best_gamma([0.0], [1.0, 1.0, 1.0]) == 0
    assert best_gamma([1.0, 0.0], [1.0, 1.5, 1.5, 1.5]) == 1


def test_verification_that_is_said_for_every_k():
    assert step_seconds(0.1, 2, [1.0, 1.2, 1.5]) == pytest.approx((1.0, 1.3, 1.7))
    assert step_seconds(0.1, 1, [1.0, 1.2, 1.5]) == pytest.approx((1.0, 1.3))
    assert step_seconds(0, 4, {0: 1.0, 2: 2.0}) == pytest.approx((1.0, 1.5, 2.0, 2.5, 3.0))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: expected_tokens_by_position([0.5, 1.2], 1), r"rates\[1\] must be in \[0, 1\]; given 1.2"),
        (lambda: improvement_at_cost([0.5], 2, [1, 2]), "gamma must be at most 1, the longest draft with a"),
        (lambda: best_gamma([0.1], [1.0, 0.0]), r"seconds\[1\] must be a finite number, above 0; given 0.0"),
        (lambda: step_seconds(-1, 2), "c must be a finite number, at least 0; given -1"),
        (lambda: step_seconds(0.1, 2, {1: 2.0}), r"verify must include T\(0\)"),
        (lambda: step_seconds(0.1, 2, {0: 1.0, -1: 2.0}), "each k in verify must be a whole"),
    ],
)
def test_what_is_not_allowed_is_said(call, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        call()
