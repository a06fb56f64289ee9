"""Controllers of lenience by themselves: what their settings refuse, and what they say for which reports."""

import pytest
from pydantic import ValidationError

from specdec_core.interface import BatchInfo
from specdec_plugins.lenience.budgeted import BudgetedLenience, BudgetedLenienceConfig
from specdec_plugins.lenience.constant import (
    ConstantLenienceConfig,
    GreedyLenience,
    GreedyLenienceConfig,
    ScheduleLenience,
    ScheduleLenienceConfig,
    lenience_at,
)
from tests.plugins.gamma_simulation import report as step_report


def batch(*room, gamma=4, greedy=False):
    return BatchInfo(batch_size=len(room), max_gamma=gamma, room=room, greedy=greedy)


def report(*rows, drafted=4):
    """A step: for each row its kept tokens and its deviation, one more token being committed."""
    kept, deviation = zip(*rows, strict=True)
    return step_report((drafted,) * len(rows), kept, deviation=deviation)


@pytest.mark.parametrize(
    ("config", "lossless"),
    [
        (ConstantLenienceConfig(), True),
        (ConstantLenienceConfig(lenience=0.99), False),
        (GreedyLenienceConfig(lenience=1), True),
        (GreedyLenienceConfig(lenience=0.5), False),
        (ScheduleLenienceConfig(points=((5, 1.0),)), True),
        (ScheduleLenienceConfig(points=((5, 1.0), (6, 0.9), (7, 1.0))), False),
        (BudgetedLenienceConfig(max_deviation=0), True),
        (BudgetedLenienceConfig(max_deviation=2, min_lenience=1), True),
        (BudgetedLenienceConfig(max_deviation=1e-9), False),
    ],
)
def test_which_settings_are_lossless(config, lossless):
    assert config.lossless is lossless
    assert config.lossless_for(greedy=True) is lossless
    assert config.lossless_for(greedy=False) is (lossless or isinstance(config, GreedyLenienceConfig))


def test_argmax_is_lenient_where_decoding_is_argmax_only():
    controller = GreedyLenience(GreedyLenienceConfig(lenience=0.3))
    for greedy, said in ((True, 0.3), (False, 1.0)):
        session = controller.open(batch(9, 9, greedy=greedy))
        assert list(session.lenience()) == [said, said]
        session.observe(report((2, 0.5), (0, 0.0)))
        assert list(session.lenience()) == [said, said]


def test_a_schedule_that_descends_says_where():
    with pytest.raises(ValidationError, match="positions must ascend, but 2 follows 7; sort the pairs"):
        ScheduleLenienceConfig(points=((3, 0.5), (7, 0.4), (2, 0.3)))


def test_a_schedule_goes_from_point_to_point():
    points = ((2, 1.0), (6, 0.6), (7, 0.1))
    straight = ScheduleLenienceConfig(points=points)
    found = [lenience_at(straight, position) for position in range(10)]
    assert found == pytest.approx([1, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.1, 0.1, 0.1])
    steps = ScheduleLenienceConfig(points=points, interpolation="step")
    assert [lenience_at(steps, position) for position in range(9)] == [1, 1, 1, 1, 1, 1, 0.6, 0.1, 0.1]


def test_each_position_of_a_draft_is_judged_by_its_position_in_its_row():
    config = ScheduleLenienceConfig(points=((0, 1.0), (10, 0.5)))
    session = ScheduleLenience(config).open(batch(64, 64, gamma=3))
    assert session.lenience() == [pytest.approx([1, 0.95, 0.9])] * 2
    session.observe(report((0, 0.0), (3, 0.0)))
    assert session.lenience() == [pytest.approx([0.95, 0.9, 0.85]), pytest.approx([0.8, 0.75, 0.7])]
    for _ in range(3):
        session.observe(report((3, 0.0), (1, 0.0)))
    # The last number holds for all positions behind it.
    assert session.lenience() == [pytest.approx([0.5]), pytest.approx([0.5])]
    session = ScheduleLenience(config).open(batch(2, 64, gamma=3))
    session.observe(report((1, 0.0), (3, 0.0)))
    assert session.lenience()[1] == pytest.approx([0.8, 0.75, 0.7]), "beyond the first row's end"


def budgeted(deviation, *room, gamma=4, greedy=False, **more):
    config = BudgetedLenienceConfig(max_deviation=deviation, **more)
    return BudgetedLenience(config).open(batch(*(room or (64,)), gamma=gamma, greedy=greedy))


def limit(leniences, gamma, *, greedy):
    """The most that a draft can spend, whatever p and q are."""
    each = [*leniences, *leniences[-1:] * gamma][:gamma]
    return sum((l_one < 1) if greedy else min(1.0, 1 / l_one - 1) for l_one in each)


def test_without_a_budget_it_is_strict():
    assert budgeted(0, 64).lenience() == [[1.0]]
    assert budgeted(1e-6, 64).lenience() == [[1.0]]  # less than rounding may come to
    assert budgeted(0.99, 64, greedy=True).lenience() == [[1.0]]


def test_the_first_position_is_served_first():
    (small,) = budgeted(1).lenience()
    assert len(small) == 2
    assert 0.5 < small[0] < small[1] == 1
    (large,) = budgeted(12).lenience()
    assert large[0] == 0.1
    assert 0.1 <= large[1] < 1
    assert large[-1] == 1
    assert budgeted(1000, min_lenience=0.2).lenience() == [[0.2, 0.2, 0.2, 0.2, 1.0]]


def test_it_is_stricter_over_a_longer_text_and_after_spending():
    first = [budgeted(1, room).lenience()[0][0] for room in (16, 64, 256)]
    assert first == sorted(first)
    assert budgeted(1, 256, expected_length=16).lenience() == budgeted(1, 16).lenience()
    assert budgeted(1, 16, expected_length=256).lenience() == budgeted(1, 16).lenience()
    thrifty, spending = budgeted(2), budgeted(2)
    thrifty.observe(report((2, 0.0)))
    spending.observe(report((2, 1.0)))
    assert thrifty.lenience()[0][0] < spending.lenience()[0][0]


def test_what_a_lenience_costs_is_learnt():
    cheap, dear = budgeted(1), budgeted(1)
    for session, rate in ((cheap, 0.05), (dear, 0.5)):
        for _ in range(8):
            session.observe(report((2, rate * (1 - session.lenience()[0][0]))))
    assert cheap.lenience()[0][0] < dear.lenience()[0][0]


def test_rows_are_accounts_of_their_own():
    together = budgeted(1, 64, 32, 16)
    alone = [budgeted(1, room) for room in (64, 32, 16)]
    for step in range(6):
        said = together.lenience()
        assert said == [session.lenience()[0] for session in alone]
        rows = [(step % 4, 0.1), (0, 0.2), (3, 0.0)]
        together.observe(report(*rows))
        for session, row in zip(alone, rows, strict=True):
            session.observe(report(row))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("deviation", [0.3, 1, 2.5, 7])
@pytest.mark.parametrize("gamma", [1, 2, 8])
@pytest.mark.parametrize("least", [0.01, 0.8])
def test_the_worst_p_and_q_stay_within_the_budget(deviation, gamma, greedy, least):
    """Every position is judged and spends the most that it can, in every step."""
    session = budgeted(deviation, 200, gamma=gamma, greedy=greedy, min_lenience=least)
    left = deviation
    for _ in range(200 // (gamma + 1)):
        (said,) = session.lenience()
        assert all(least <= l_one <= 1 for l_one in said)
        worst = limit(said, gamma, greedy=greedy)
        left -= worst
        assert left >= 0
        session.observe(report((gamma, worst), drafted=gamma))
    assert left == pytest.approx(deviation % 1 if greedy else 0, abs=0.1)


def test_steps_without_a_draft_are_no_chances():
    drafted, seldom = budgeted(1), budgeted(1)
    for _ in range(6):
        drafted.lenience()
        drafted.observe(report((0, 0.0)))
        seldom.lenience()
        seldom.observe(report((0, 0.0), drafted=0))
    assert seldom.lenience()[0][0] < drafted.lenience()[0][0]
