"""Tuning: find the fastest drafter, settings and gamma, by racing candidates on a record and timing the best live.

Importing this package does not import torch; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes

if TYPE_CHECKING:
    from specdec_core.offline.tune.race import RaceSettings
    from specdec_core.offline.tune.tuning import TuneOptions, tune
    from specdec_core.offline.tune.tuning_result import TunedTask, Tuning

__all__ = ["RaceSettings", "TuneOptions", "TunedTask", "Tuning", "tune"]

lazy_attributes(
    globals(),
    {
        "specdec_core.offline.tune.race": ("RaceSettings",),
        "specdec_core.offline.tune.tuning_result": ("TunedTask", "Tuning"),
        "specdec_core.offline.tune.tuning": ("TuneOptions", "tune"),
    },
)
