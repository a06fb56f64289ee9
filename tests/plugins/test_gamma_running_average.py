"""The running average: the derivative, the estimate of alpha, and where gamma goes."""

import pytest

from specdec_core.theory.speed import optimal_gamma
from specdec_plugins.gamma.adaptive import RunningAverageGamma, RunningAverageGammaConfig
from tests.plugins.gamma_simulation import batch_info, decode, report


def opened(rows=1, **settings):
    controller = RunningAverageGamma(RunningAverageGammaConfig(**settings))
    return controller.open(batch_info(controller, rows))


@pytest.mark.parametrize("initial", [1, 16])
@pytest.mark.parametrize(
    ("alpha", "c"), [(0.2, 0.05), (0.5, 0.05), (0.7, 0.05), (0.8, 0.05), (0.9, 0.05), (0.9, 0.2), (0.7, 0.02)]
)
def test_it_goes_to_the_optimal_gamma_of_theorem_3_8(alpha, c, initial):
    session = opened(initial_gamma=initial, c=c, decay=0.99)
    course = decode(session, 1500, lambda _: alpha, seed=3).asked[300:]
    assert sum(course) / len(course) == pytest.approx(optimal_gamma(alpha, c), abs=0.7, rel=0.1)


def test_it_follows_a_text_that_changes():
    session = opened()
    easy = decode(session, 100, lambda _: 0.9).asked[-1]
    hard = decode(session, 100, lambda _: 0.2).asked[-1]
    again = decode(session, 100, lambda _: 0.9).asked[-1]
    assert hard <= 2 < 9 < min(easy, again)


def test_drafting_that_costs_nothing_or_never_fails_goes_to_the_bounds():
    assert decode(opened(c=0.0, max_gamma=9), 300, lambda _: 0.6).asked[-1] == 9
    assert decode(opened(max_gamma=12), 100, lambda _: 1.0).asked[-1] == 12
    assert decode(opened(min_gamma=2), 100, lambda _: 0.0).asked[-1] == 2
    assert decode(opened(decay=0.0), 100, lambda _: 0.0).asked[-1] == 1


def test_short_and_long_drafts_count_by_their_tokens():
    # One of nine tokens is rejected: alpha is 8/9, though the mean of 0/1 and 8/8 would be a half.
    session = opened(decay=0.99, max_gamma=30, c=0.02)
    for _ in range(400):
        session.observe(report((8,), (8,)))
        session.observe(report((8,), (0,)))
    assert list(session.plan()) == [pytest.approx(optimal_gamma(8 / 9, 0.02), abs=1)]


@pytest.mark.parametrize("ended", [False, True])
def test_where_nothing_was_judged_nothing_changes(ended):
    session, other = opened(), opened()
    for one in (session, other):
        one.observe(report((5,), (2,)))
    for _ in range(50):
        session.observe(report((0,), (0,), ended=(ended,)))
    for accepted in (1, 3, 0):
        for one in (session, other):
            one.observe(report((3,), (accepted,)))
        assert list(session.plan()) == list(other.plan())


def test_c_is_measured_from_the_reports():
    measured, given = opened(c=None), opened(c=0.2)
    for step in range(1, 200):
        # A draft of 5 in the time of a target call: c = 1 / 5.
        measured.observe(report((5,), (4,), step=step, draft_seconds=2.0, verify_seconds=2.0))
        given.observe(report((5,), (4,), step=step))
    assert list(measured.plan()) == list(given.plan()) == [optimal_gamma(0.8, 0.2)]


def test_the_first_step_is_no_part_of_c():
    # It reads the prompt. Without c gamma stays, and then it moves by what later steps take.
    one, other = opened(c=None, step_size=60), opened(c=None, step_size=60)
    one.observe(report((5,), (0,), step=0, draft_seconds=5.0))
    other.observe(report((5,), (0,), step=0, draft_seconds=0.0))
    assert list(one.plan()) == list(other.plan()) == [5]
    for session in (one, other):
        session.observe(report((5,), (1,), step=1))
    assert list(one.plan()) == list(other.plan()) == [4]
