"""Profiles of acceptance that travel with a drafter: `speculation_profile.json`.

Importing this package imports neither torch nor numpy; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes

if TYPE_CHECKING:
    from specdec_core.offline.profile.counts import DraftCounts, Measured, speculation_profile
    from specdec_core.offline.profile.format import SpeculationProfile, read_profile, write_profile
    from specdec_core.offline.profile.from_log import measured_in_log
    from specdec_core.offline.profile.from_record import measured_on_record
    from specdec_core.offline.profile.from_results import measured_in_study

__all__ = [
    "DraftCounts",
    "Measured",
    "SpeculationProfile",
    "measured_in_log",
    "measured_in_study",
    "measured_on_record",
    "read_profile",
    "speculation_profile",
    "write_profile",
]

lazy_attributes(
    globals(),
    {
        "specdec_core.offline.profile.counts": ("DraftCounts", "Measured", "speculation_profile"),
        "specdec_core.offline.profile.format": ("SpeculationProfile", "read_profile", "write_profile"),
        "specdec_core.offline.profile.from_log": ("measured_in_log",),
        "specdec_core.offline.profile.from_record": ("measured_on_record",),
        "specdec_core.offline.profile.from_results": ("measured_in_study",),
    },
)
