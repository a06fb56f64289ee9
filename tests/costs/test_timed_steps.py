"""Costs from the times that steps report."""

from __future__ import annotations

import math

import pytest

from specdec_core.costs import measured_costs
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


def test_t_is_a_median_and_d_a_mean_by_the_longest_draft_that_was_made():
    steps = [report((0, 0), (0, 0), 0.25, 4.0)]
    steps += [report((2, 2), (1, 2), draft, verify) for draft, verify in ((1, 5), (2, 6), (9, 99))]
    steps += [report((2, 2), (0, 0), 7.0, 4.0)]  # asked in vain
    found = measured_costs(steps, 2, min_count=3)
    assert found.timed == (0, 2)
    assert found.verify == (4.0, 5.0, 6.0)
    assert found.draft == (0.0, 2.0, 4.0)
    assert found.overhead == 0.5
    assert measured_costs(steps, 2, min_count=4).timed == (0,)
    assert found.verify_spread[2] == pytest.approx((99 - 5) / 12)  # up to eight: the range
    # The interval of Student's distribution for three values around 4.
    assert found.draft_spread == (pytest.approx(4.30265 * math.sqrt(19 / 3) / 4, rel=1e-5),) * 3


def test_a_drafter_whose_drafts_differ_in_cost_costs_their_mean():
    """Two of three drafts are found in the prompt, and a model makes the third: its seconds count."""
    steps = plain(1.0)
    for k in (1, 2):
        steps += [report((k,), (k,), seconds, 1.0) for seconds in (0.01, 0.01, 0.4 * k)] * 2
    found = measured_costs(steps, 2)
    assert found.draft == pytest.approx((0.0, 0.14, 0.82 / 3))
    assert found.c == pytest.approx((0.14 + 2 * 0.82 / 3) / 5)
    spent = sum(one.draft_seconds for one in steps)
    assert sum(found.draft[max(one.outcome.drafted)] for one in steps) == pytest.approx(spent)


def test_the_spread_of_lengths_that_did_not_occur_is_between_that_of_others():
    steps = [report((0,), (0,), 0.0, verify) for verify in (3.0, 4.0, 5.0)]
    steps += [report((2,), (2,), 2.0, verify) for verify in (5.25, 6.0, 6.75)]
    assert measured_costs(steps, 3).verify_spread == (0.25, 0.1875, 0.125, 0.125)


def test_lengths_that_did_not_occur_are_read_off_a_line():
    found = measured_costs(
        [*plain(4.0), report((2,), (2,), 2.0, 6.0), report((3,), (3,), 5.0, 6.5)], 5, min_count=1
    )
    assert found.draft == pytest.approx((0, 1, 2, 5, 8, 11))
    assert found.verify == pytest.approx((4, 5, 6, 6.5, 7, 7.5))
    assert found.step == pytest.approx((4.5, 6.5, 8.5, 12, 15.5, 19))
    assert found.timed == (0, 2, 3)
    # k c nearest to the seconds, in units of T(0): (2 * 2 + 3 * 5) / (4 + 9) / 4.
    assert found.c == pytest.approx(19 / 13 / 4)


def test_a_falling_end_is_not_drawn_out():
    steps = [*plain(4.0), report((1,), (1,), 3.0, 5.0), report((2,), (2,), 2.0, 4.5)]
    found = measured_costs(steps, 4, min_count=1)
    assert found.draft[2:] == (2.0, 2.0, 2.0)
    assert found.verify[2:] == (4.5, 4.5, 4.5)


def test_verification_of_missing_lengths_is_that_of_other_drafts():
    others = [report((k,), (k,), 9.0, verify) for k, verify in enumerate((40.0, 50.0, 6.0, 8.0))]
    steps = [*plain(4.0), report((1,), (1,), 1.0, 5.0)]
    found = measured_costs(steps, 3, min_count=1, others=others)
    assert found.verify == (4.0, 5.0, 6.0, 8.0)
    assert found.draft == (0.0, 1.0, 2.0, 3.0)
    assert found.timed == (0, 1)


def test_a_drafter_that_never_proposes_costs_nothing():
    found = measured_costs(plain(4.0), 2)
    assert found.c == 0
    assert found.step == (4.5, 4.5, 4.5)
