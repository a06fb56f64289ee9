"""Sections 3.1 to 3.5, without the paper's numbers, which test_paper.py has."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.theory.speed import (
    expected_tokens,
    improves,
    operations_increase,
    optimal_gamma,
    walltime_improvement,
)

alphas = st.floats(0, 1)
below_1 = st.floats(0, 0.999)
costs = st.floats(0, 2)


@given(alphas, st.integers(0, 60))
def test_expected_tokens_is_right_wherever_alpha_is(alpha, gamma):
    assert expected_tokens(alpha, gamma) == pytest.approx(math.fsum(alpha**i for i in range(gamma + 1)), rel=1e-12)


@pytest.mark.parametrize("alpha", [1e-300, 1e-17, 0.5, 1 - 1e-15, math.nextafter(1, 0)])
def test_expected_tokens_near_the_ends(alpha):
    assert expected_tokens(alpha, 5) == pytest.approx(sum(alpha**i for i in range(6)), rel=1e-13)


def test_limits_of_alpha():
    assert expected_tokens(1, 5) == 6
    assert isinstance(expected_tokens(1, 5), float)
    assert expected_tokens(0, 5) == 1
    assert walltime_improvement(0.9, 0, 0.3) == 1
    assert operations_increase(0, 4, 0.5) == 7
    assert operations_increase(1, 4, 0) == 1


def test_operations_are_those_of_a_step_over_its_tokens():
    assert operations_increase(0.7, 3, 0.1) == pytest.approx((3 * 0.1 + 4) / (1 + 0.7 + 0.49 + 0.343))


@given(alphas, costs)
def test_some_gamma_pays_just_where_alpha_is_above_c(alpha, c):
    best = max(walltime_improvement(alpha, gamma, c) for gamma in range(1, 40))
    if improves(alpha, c):
        assert best >= (1 + alpha) / (1 + c) * (1 - 1e-12)
    else:
        assert best <= 1 + 1e-12


@given(alphas, costs, st.integers(0, 80))
def test_the_optimal_gamma_is_the_first_best_of_all(alpha, c, most):
    factors = [walltime_improvement(alpha, gamma, c) for gamma in range(most + 1)]
    found = optimal_gamma(alpha, c, most)
    assert factors[found] >= max(factors) * (1 - 1e-12)
    # Among those that floats can tell apart there is no smaller one.
    assert all(factor < factors[found] * (1 + 1e-12) for factor in factors[:found])
    assert found == 0 or alpha > c


@pytest.mark.parametrize(("alpha", "c"), [(0.5, 0), (0.1, 0), (1, 0), (1, 0.5), (1, 1 - 1e-15)])
def test_without_a_price_gamma_is_as_large_as_allowed(alpha, c):
    # Differences of the factors vanish in floats long before.
    assert optimal_gamma(alpha, c) == 1000
    assert optimal_gamma(alpha, c, max_gamma=7) == 7


def test_of_equals_the_smallest_gamma():
    # (1 + 1/2) / (1 + c) = (1 + 1/2 + 1/4) / (1 + 2 c) at c = 1/5.
    assert walltime_improvement(0.5, 1, 0.2) == pytest.approx(walltime_improvement(0.5, 2, 0.2))
    assert optimal_gamma(0.5, 0.2 + 1e-9) == 1
    assert optimal_gamma(0.5, 0.2 - 1e-9) == 2
    assert optimal_gamma(0.5, 0.125) == 2


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "name"),
    [
        (1.1, 2, 0, "alpha"),
        (float("nan"), 2, 0, "alpha"),
        (0.5, -1, 0, "gamma"),
        (0.5, 2, -0.1, "c"),
        (0.5, 2, float("inf"), "c"),
    ],
)
def test_out_of_range_is_refused_by_name(alpha, gamma, c, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        walltime_improvement(alpha, gamma, c)
    with pytest.raises(ValueError, match=r"^(alpha|gamma|c_hat) must be"):
        operations_increase(alpha, gamma, c)


@pytest.mark.parametrize("most", [-1, 2.5, math.nan, math.inf])
def test_a_limit_is_a_whole_number(most):
    with pytest.raises(ValueError, match=r"^max_gamma must be a whole number, at least 0; given"):
        optimal_gamma(0.5, 0.1, most)
