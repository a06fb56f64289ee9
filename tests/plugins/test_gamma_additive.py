"""The additive gamma: up when all was accepted, down when something was not."""

import pytest

from specdec_plugins.gamma.adaptive import AdditiveGamma, AdditiveGammaConfig
from tests.plugins.gamma_simulation import batch_info, decode, report


def opened(rows=1, **settings):
    controller = AdditiveGamma(AdditiveGammaConfig(**settings))
    return controller.open(batch_info(controller, rows))


def test_it_begins_and_moves_as_the_librarys_does():
    session = opened()
    assert list(session.plan()) == [5]
    session.observe(report((5,), (5,)))
    assert list(session.plan()) == [7]
    session.observe(report((7,), (6,)))
    assert list(session.plan()) == [6]
    session.observe(report((6,), (0,)))
    assert list(session.plan()) == [5]


def test_it_stays_within_its_bounds():
    session = opened(initial_gamma=3, min_gamma=2, max_gamma=4, increase=3, decrease=2)
    for drafted, accepted, gamma in ((3, 3, 4), (4, 4, 4), (4, 1, 2), (2, 0, 2)):
        session.observe(report((drafted,), (accepted,)))
        assert list(session.plan()) == [gamma]


@pytest.mark.parametrize(
    ("drafted", "accepted", "ended"),
    [(0, 0, False), (3, 3, False), (0, 0, True)],
    ids=["nothing drafted", "a short draft, accepted whole", "a row that had ended"],
)
def test_what_says_nothing_of_gamma_leaves_it(drafted, accepted, ended):
    session = opened()
    session.observe(report((drafted,), (accepted,), ended=(ended,)))
    assert list(session.plan()) == [5]


def test_a_rejection_in_a_short_draft_counts():
    session = opened()
    session.observe(report((3,), (1,)))
    assert list(session.plan()) == [4]


def test_it_settles_where_rejections_balance_what_is_accepted():
    good, bad = (decode(opened(), 400, lambda _, a=alpha: a).asked[100:] for alpha in (0.9, 0.2))
    # Up by 2 as often as down by 1: where alpha^gamma is a third, so at 10.4 and at 0.7.
    assert 8 < sum(good) / len(good) < 13
    assert 1 <= sum(bad) / len(bad) < 2
