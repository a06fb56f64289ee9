"""The statistics of a race: intervals of ratios, and that the fastest candidate survives as often as is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from specdec_core.offline.tune.elimination import (
    cluster_counts,
    comparison_error,
    fieller_interval,
    standing,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 47, 200, 999])
@pytest.mark.parametrize("error", [0.5, 0.25, 0.025, 1e-4, 1e-8])
def test_the_quantile_is_students(error, freedom):
    assert student_quantile(error, freedom) == pytest.approx(stats.t.isf(error, freedom), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("error", "freedom"), [(0, 3), (0.6, 3), (0.1, 0)])
def test_a_quantile_that_does_not_exist_is_refused(error, freedom):
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(error, freedom)


def test_the_interval_ends_where_students_test_begins_to_reject():
    generator = np.random.default_rng(0)
    x, y = generator.gamma(4, size=12), generator.gamma(5, size=12)
    ratio = fieller_interval(x, y, error=0.01)
    assert ratio.value == pytest.approx(x.sum() / y.sum())
    for end, sign in ((ratio.low, 1), (ratio.high, -1)):
        left = x - end * y
        assert sign * left.mean() / (left.std(ddof=1) / math.sqrt(12)) == pytest.approx(student_quantile(0.01, 11))


def test_too_few_clusters_tell_nothing():
    one = fieller_interval(np.array([2.0]), np.array([1.0]))
    assert (one.value, one.low, one.high) == (2.0, -math.inf, math.inf)
    # Two clusters of very different size: no ratio can be rejected at this level.
    wide = fieller_interval(np.array([1.0, 90.0]), np.array([2.0, 30.0]), error=1e-4)
    assert (wide.low, wide.high) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="cluster"):
        fieller_interval(np.array([]), np.array([]))


def test_what_all_texts_share_cancels():
    """A candidate that is slower by 1% in every text is told apart, however much the texts differ."""
    texts = np.random.default_rng(1).lognormal(0, 1, size=20)
    ratio = fieller_interval(1.01 * texts, texts, error=1e-3)
    assert ratio.low == pytest.approx(1.01)
    assert ratio.high == pytest.approx(1.01)


def test_rounds_double_and_end_with_all():
    assert cluster_counts(48) == (8, 16, 32, 48)
    assert cluster_counts(8) == (8,)
    assert cluster_counts(9) == (8, 9)
    assert cluster_counts(3) == (3,)


def test_the_error_is_shared_by_all_comparisons():
    assert comparison_error(0.05, 11, 5) == pytest.approx(0.001)
    assert comparison_error(0.05, 1, 1) == 0.05


def test_the_leader_stays_and_clearly_slower_ones_stop():
    generator = np.random.default_rng(2)
    texts = generator.gamma(9, size=16)
    noise = {name: generator.normal(1, 0.01, size=16) for name in "abc"}
    totals = {"a": 1.01 * texts * noise["a"], "b": texts * noise["b"], "c": 1.5 * texts * noise["c"]}
    found = standing(totals, error=1e-3, margin=0.02)
    assert (found.leader, found.stopped) == ("b", ("c",))
    assert found.ratios["b"].value == 1
    # 50% slower is not clearly more than 50% slower.
    assert standing(totals, error=1e-3, margin=0.5).stopped == ()


def race(totals, error):
    """Run the rounds over the columns of `totals`; return the surviving rows."""
    alive = {str(row): total for row, total in enumerate(totals)}
    counts = cluster_counts(totals.shape[1])
    each = comparison_error(error, len(totals), len(counts))
    for count in counts:
        stopped = standing({name: total[:count] for name, total in alive.items()}, each).stopped
        alive = {name: total for name, total in alive.items() if name not in stopped}
    return {int(name) for name in alive}


def survival(error, races, generator, candidates=12, prompts=32):
    """Return how often the truly fastest of nearly equal candidates survives; row 0 is the fastest.

    Texts differ much and are skewed, as lengths of texts are, and candidates depend on them differently.
    """
    survived = 0
    slower = 1 + 0.004 * np.arange(candidates)
    for _ in range(races):
        texts = generator.lognormal(0, 0.8, size=prompts)
        own = generator.gamma(20, 1 / 20, size=(candidates, prompts))  # mean 1, skewed
        survived += 0 in race(slower[:, None] * texts * own, error)
    return survived / races


def test_the_fastest_survives_and_the_others_mostly_do_not():
    assert survival(0.1, 100, np.random.default_rng(3)) >= 0.9
    generator = np.random.default_rng(4)
    texts = generator.lognormal(0, 0.8, size=32)
    own = generator.gamma(20, 1 / 20, size=(12, 32))
    left = race((1 + 0.2 * np.arange(12))[:, None] * texts * own, 0.05)
    assert 0 in left
    assert len(left) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.05, 0.2])
def test_the_fastest_survives_with_the_probability_that_is_stated(error):
    assert survival(error, 10_000, np.random.default_rng(5)) >= 1 - error


@pytest.mark.slow
def test_a_single_comparison_errs_as_often_as_is_said():
    """Two candidates of equal speed: without the correction's slack, the interval itself is checked."""
    generator = np.random.default_rng(6)
    races, prompts, error = 20_000, 16, 0.025
    texts = generator.lognormal(0, 0.5, size=(races, prompts))
    x, y = (texts * generator.gamma(20, 1 / 20, size=(races, prompts)) for _ in range(2))
    low = np.array([fieller_interval(a, b, error).low for a, b in zip(x, y, strict=True)])
    wrong = float((low > 1).mean())
    assert wrong == pytest.approx(error, abs=0.006)
