"""The controllers against the conformance kit, and what they do."""

from specdec_follow import Follow, FollowConfig, Late, LateConfig

from specdec_core import BatchInfo, StepReport
from specdec_core.testing import GammaKit, LenienceKit

ONE_ROW = BatchInfo(batch_size=1, max_gamma=4, room=(64,), argmax=False)


class TestFollow(GammaKit):
    plugin = "follow"
    require = ("rows-apart",)


class TestLate(LenienceKit):
    plugin = "late"


def kept(accepted: int) -> StepReport:
    """A step of one row that drafted four tokens and kept the first ones."""
    counts = {"step": 0, "asked": (4,), "drafted": (4,), "accepted": (accepted,), "finished": (False,)}
    tokens = {"committed": ((7,) * (accepted + 1),), "draft_tokens": ((7,) * 4,), "deviation": (0.0,)}
    return StepReport(**counts, **tokens, draft_seconds=0.1, verify_seconds=0.1, step_seconds=0.2)


def test_it_asks_for_one_more_than_were_accepted() -> None:
    session = Follow(FollowConfig(most=4)).open(ONE_ROW)
    asked = [session.gamma()[0]]
    for accepted in (1, 2, 4, 0):
        session.observe(kept(accepted))
        asked.append(session.gamma()[0])
    assert asked == [1, 2, 3, 4, 1]


def test_it_is_strict_at_first() -> None:
    session = Late(LateConfig(strict_for=6, lenience=0.5)).open(ONE_ROW)
    assert session.lenience() == [[1, 1, 1, 1]]
    session.observe(kept(3))
    assert session.lenience() == [[1, 1, 0.5, 0.5]]
