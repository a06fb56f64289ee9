"""Estimates from prompts: ratios by hand, and tests and intervals that keep their word."""

import numpy as np
import pytest
from scipy.stats import binom

from specdec_core.study.report.paired import MIN_PROMPTS, Estimate, adjusted, estimate, ratio_units
from specdec_core.theory.intervals import ratio_interval


def test_the_interval_of_a_ratio_by_hand():
    tokens, steps = np.array([3.0, 5.0, 4.0, 6.0, 8.0, 4.0]), np.array([1.0, 2.0, 2.0, 2.0, 3.0, 2.0])
    units = ratio_units([tokens], [steps])
    found = estimate(units)
    ratio = 30 / 12
    residuals = tokens - ratio * steps  # 0.5, 0, -1, 1, 0.5, -1
    error = np.sqrt(6 / 5 * np.square(residuals).sum()) / 12
    assert found.value == pytest.approx(ratio)
    assert (found.low, found.high) == pytest.approx((ratio - 2.5706 * error, ratio + 2.5706 * error), rel=1e-4)
    assert (found.low, found.high) == pytest.approx(ratio_interval(tokens, steps, range(6)), rel=0.01)


def test_a_ratio_of_ratios_and_sums_of_nothing():
    a, b = np.array([2.0, 4.0]), np.array([1.0, 1.0])
    assert ratio_units([a, b], [b, 2 * a]).mean() == pytest.approx(0.5)
    assert ratio_units([0 * a], [b]).tolist() == [0, 0]
    assert ratio_units([a], [0 * b]) is None
    assert ratio_units([a], [np.array([1.0, np.nan])]) is None


def test_few_or_equal_units():
    assert estimate(np.ones(MIN_PROMPTS - 1)) == Estimate(1.0)
    assert estimate(np.zeros(8)) == Estimate(0.0, 0.0, 0.0, 1.0)
    assert estimate(np.ones(6)).p == 2 / 2**6


def test_p_values_are_adjusted_and_missing_ones_stay():
    assert adjusted([0.01, None, 0.02, 0.6]) == pytest.approx([0.03, None, 0.03, 0.6])
    assert adjusted([None]) == [None]


def test_false_alarms_are_rare_and_intervals_hold_0():
    """Block efficiencies of two drafters that are equally good, on prompts of which some are harder."""
    count, trials = 8, 600
    chance = np.random.default_rng(count)
    found = []
    for _ in range(trials):
        hard = chance.uniform(1.5, 4.0, size=count)
        steps = chance.integers(20, 60, size=(2, count)).astype(float)
        tokens = steps * np.maximum(1.0, hard + chance.normal(0, 0.4, size=(2, count)))
        one, other = (ratio_units([t], [n]) for t, n in zip(tokens, steps, strict=True))
        found.append(estimate(one - other))
    least, most = binom.ppf([0.001, 0.999], trials, [0.03, 0.07])
    assert least <= sum(one.p < 0.05 for one in found) <= most
    assert least <= sum(not one.low <= 0 <= one.high for one in found) <= most
