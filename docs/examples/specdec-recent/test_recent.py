"""The drafter against the conformance kit, and what it does."""

from specdec_recent import Recent, RecentConfig

from specdec_core import TargetInfo

# --8<-- [start:kit]
from specdec_core.testing import DrafterKit


class TestRecent(DrafterKit):
    plugin = "recent"


# --8<-- [end:kit]


def test_it_follows_the_trail() -> None:
    drafter = Recent(RecentConfig(window=6), TargetInfo(vocab_size=16))
    assert drafter.draft([9, 4, 1, 2, 3, 1], budget=4) == [2, 3, 1, 2]
    assert drafter.draft([1, 2, 3], budget=4) == []
