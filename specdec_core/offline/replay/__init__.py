"""Replaying drafters on recorded texts: the expected results of each, without the target.

Importing this package does not import torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes

if TYPE_CHECKING:
    from specdec_core.offline.replay.comparison import replay
    from specdec_core.offline.replay.drafter_replay import DrafterReplay
    from specdec_core.offline.replay.refusals import check_replayable
    from specdec_core.offline.replay.replayed_metrics import Replayed, expected_metrics
    from specdec_core.offline.replay.text_acceptance import TextAcceptance
    from specdec_core.offline.replay.text_session import OwnTokensError

__all__ = [
    "DrafterReplay",
    "OwnTokensError",
    "Replayed",
    "TextAcceptance",
    "check_replayable",
    "expected_metrics",
    "replay",
]

lazy_attributes(
    globals(),
    {
        "specdec_core.offline.replay.comparison": ("replay",),
        "specdec_core.offline.replay.text_session": ("OwnTokensError",),
        "specdec_core.offline.replay.drafter_replay": ("DrafterReplay",),
        "specdec_core.offline.replay.replayed_metrics": ("Replayed", "expected_metrics"),
        "specdec_core.offline.replay.text_acceptance": ("TextAcceptance",),
        "specdec_core.offline.replay.refusals": ("check_replayable",),
    },
)
