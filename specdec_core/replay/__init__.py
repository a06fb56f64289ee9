"""Replaying drafters on recorded texts: what each would have done, without the target.

Importing this package does not import torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes

if TYPE_CHECKING:
    from specdec_core.replay.along import OwnTokensError
    from specdec_core.replay.drafter import DrafterReplay
    from specdec_core.replay.expected_counts import Replayed, expected_metrics
    from specdec_core.replay.odds import TextOdds
    from specdec_core.replay.refusals import check_replayable

__all__ = [
    "DrafterReplay",
    "OwnTokensError",
    "Replayed",
    "TextOdds",
    "check_replayable",
    "expected_metrics",
]

lazy_attributes(
    globals(),
    {
        "specdec_core.replay.along": ("OwnTokensError",),
        "specdec_core.replay.drafter": ("DrafterReplay",),
        "specdec_core.replay.expected_counts": ("Replayed", "expected_metrics"),
        "specdec_core.replay.odds": ("TextOdds",),
        "specdec_core.replay.refusals": ("check_replayable",),
    },
)
