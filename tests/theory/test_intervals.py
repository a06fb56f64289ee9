"""The interval of a ratio of sums: how often it covers the ratio, and that terms of a cluster count as one."""

import numpy as np
import pytest
from scipy.stats import t

from specdec_core.theory.intervals import ratio_interval, student_tails


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


@pytest.mark.parametrize("freedom", [1, 2, 5, 8, 79])
def test_tails_are_those_of_students_distribution(freedom):
    for value in (0.0, 0.5, 2.0, 5.0):
        assert student_tails(value, freedom) == pytest.approx(2 * t.sf(value, freedom), rel=1e-9)
