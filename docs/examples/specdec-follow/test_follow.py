"""The controllers against the conformance kit, and what they do."""

from specdec_follow import Follow, FollowConfig, Late, LateConfig

from specdec_core import BatchInfo, Outcome, StepReport
from specdec_core.testing import GammaKit, LenienceKit

ONE_ROW = BatchInfo(batch_size=1, max_gamma=4, room=(64,), greedy=False)


class TestFollow(GammaKit):
    plugin = "follow"

    def test_rows_independent(self) -> None:  # an optional check, which counts here
        super().test_rows_independent()


class TestLate(LenienceKit):
    plugin = "late"


def kept(accepted: int) -> StepReport:
    """A step of one row that drafted four tokens and kept the first ones."""
    outcome = Outcome(drafted=(4,), accepted=(accepted,), committed=((7,) * (accepted + 1),), finished=(False,))
    return StepReport(0, (4,), outcome, ((7,) * 4,), 0.1, 0.1, 0.2, (0.0,))


def test_it_asks_for_one_more_than_were_accepted() -> None:
    session = Follow(FollowConfig(max_gamma=4)).open(ONE_ROW)
    asked = [session.plan()[0]]
    for accepted in (1, 2, 4, 0):
        session.observe(kept(accepted))
        asked.append(session.plan()[0])
    assert asked == [1, 2, 3, 4, 1]


def test_it_is_strict_at_first() -> None:
    session = Late(LateConfig(strict_for=6, lenience=0.5)).open(ONE_ROW)
    assert session.lenience() == [[1, 1, 1, 1]]
    session.observe(kept(3))
    assert session.lenience() == [[1, 1, 0.5, 0.5]]
