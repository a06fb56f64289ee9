"""Intervals of a ratio of sums, whose terms of a cluster count as one, and of a median."""

import numpy as np
import pytest

from specdec_core.theory.intervals import median_interval, ratio_interval


@pytest.mark.parametrize("clusters", [3, 12, 40])
def test_the_interval_covers_the_ratio(clusters):
    generator = np.random.default_rng(clusters)
    covered, rounds = 0, 2000
    for _ in range(rounds):
        steps = generator.uniform(20, 40, clusters)
        tokens = steps * generator.normal(2.5, 0.3, clusters)
        low, high = ratio_interval(tokens.tolist(), steps.tolist(), range(clusters))
        covered += low <= 2.5 <= high
    assert 0.93 <= covered / rounds <= 0.985


def test_terms_of_a_cluster_go_together():
    tokens, steps = [50.0, 40.0, 60.0], [20.0, 20.0, 20.0]
    once = ratio_interval(tokens, steps, "abc")
    assert ratio_interval(tokens * 4, steps * 4, "abc" * 4) == pytest.approx(once), "copies tell nothing new"
    apart = ratio_interval(tokens * 4, steps * 4, range(12))
    assert apart[1] - apart[0] < (once[1] - once[0]) / 2
    assert sum(once) / 2 == pytest.approx(2.5)


def test_one_cluster_has_no_interval():
    assert ratio_interval([4.0, 5.0], [2.0, 2.0], "aa") is None
    assert ratio_interval([4.0, 4.0], [2.0, 2.0], "ab") == (2.0, 2.0)


@pytest.mark.parametrize(
    ("count", "dropped"), [(2, 0), (3, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5), (100, 39)]
)
def test_the_interval_of_the_median_leaves_out_extremes(count, dropped):
    # Conover's table of the sign test at 5%: the first rank inside is one more than those left out.
    assert median_interval(range(count)) == (dropped, count - 1 - dropped)
    assert median_interval([1.0]) is None
