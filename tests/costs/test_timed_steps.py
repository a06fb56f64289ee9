"""Costs from the times that steps report."""

import math

import pytest

from specdec_core.costs.step_costs import mean_seconds, measured_costs
from specdec_core.interface import Outcome, StepReport


def report(asked, drafted, draft, verify, rest=0.5):
    tokens = ((),) * len(drafted)
    return StepReport(
        step=1,
        asked=asked,
        outcome=Outcome(
            drafted=drafted,
            accepted=(0,) * len(drafted),
            committed=((1,),) * len(drafted),
            finished=(False,) * len(drafted),
        ),
        draft_tokens=tokens,
        draft_seconds=draft,
        verify_seconds=verify,
        step_seconds=draft + verify + rest,
        deviation=(0.0,) * len(drafted),
    )


def plain(verify, count=1):
    return [report((0,), (0,), 0.0, verify)] * count


def test_t_is_a_median_by_the_longest_draft_that_was_made():
    steps = [report((0, 0), (0, 0), 0.25, 4.0, rest=9.0)]
    steps += [report((2, 2), (1, 2), draft, verify) for draft, verify in ((1, 5), (2, 6), (9, 99))]
    steps += [report((2, 2), (0, 0), 7.0, 4.0)]  # asked in vain
    found = measured_costs(steps, 2)
    assert found.verify == (4.0, 5.0, 6.0)
    assert found.overhead == 0.5
    assert found.verify_spread[2] == pytest.approx((99 - 5) / 12)  # up to eight: the range


def test_d_is_a_mean():
    """Two of three drafts are found in the prompt, and a model makes the third: its seconds count."""
    means, spreads = mean_seconds({0: [0.0], 1: [0.01, 0.01, 0.4] * 2, 2: [1.0, 2.0, 9.0]}, 2)
    assert means == pytest.approx((0.0, 0.14, 4.0))
    # The interval of Student's distribution for three values around 4.
    assert spreads[2] == pytest.approx(4.30265 * math.sqrt(19 / 3) / 4, rel=1e-5)


def test_the_spread_of_lengths_that_did_not_occur_is_between_that_of_others():
    steps = [report((0,), (0,), 0.0, verify) for verify in (3.0, 4.0, 5.0)]
    steps += [report((2,), (2,), 2.0, verify) for verify in (5.25, 6.0, 6.75)]
    assert measured_costs(steps, 3).verify_spread == (0.25, 0.1875, 0.125, 0.125)


def test_lengths_that_did_not_occur_are_read_off_a_line():
    found = measured_costs([*plain(4.0), report((2,), (2,), 2.0, 6.0), report((3,), (3,), 5.0, 6.5)], 5)
    assert found.verify == pytest.approx((4, 5, 6, 6.5, 7, 7.5))
    assert mean_seconds({0: [0.0], 2: [2.0], 3: [5.0]}, 5)[0] == pytest.approx((0, 1, 2, 5, 8, 11))


def test_a_falling_end_is_not_drawn_out():
    steps = [*plain(4.0), report((1,), (1,), 3.0, 5.0), report((2,), (2,), 2.0, 4.5)]
    assert measured_costs(steps, 4).verify[2:] == (4.5, 4.5, 4.5)
