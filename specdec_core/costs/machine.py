"""A machine, as expectations see it: the costs of its steps with each drafter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec_core.costs.step_costs import StepCosts

NOISY = 0.02
"""Noise above this is warned of: seconds of steps that are known no better tell few runs apart."""
TIME_AGAIN = (
    "Time the steps again while the machine does nothing else: `specdec record --timings` renews the times in a "
    "record, `specdec measure` those in the file of a machine"
)
"""Advice where times are noisy."""


@dataclass(frozen=True)
class Machine:
    """The costs of steps on a machine.

    Attributes:
        name: Its name in tables.
        device: Hardware of the target.
        target: T(k) and the overhead, without a drafter.
        drafters: The same with D(k) of a drafter, by `settings_key`.
    """

    name: str
    device: str
    target: StepCosts
    drafters: Mapping[str, StepCosts] = field(default_factory=dict)


def settings_key(drafter: Mapping[str, Any], draft_sampling: Mapping[str, Any] | None) -> str:
    """Return what tells a drafter from others: its settings, and those of its sampling, both as plain data."""
    return json.dumps([drafter, draft_sampling], sort_keys=True)
