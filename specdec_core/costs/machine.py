"""A machine, as expectations see it: the costs of its steps with each drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface.errors import ConfigError

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
        drafters: The same with D(k) of a drafter, by drafter.
        batch_size: Number of sequences that were decoded together in these steps.
        missing: Why the costs with some drafters are not known, by drafter.
        note: What a reader should know of the times; None for nothing.
    """

    name: str
    device: str
    target: StepCosts
    drafters: Mapping[str, StepCosts] = field(default_factory=dict)
    batch_size: int = 1
    missing: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None

    def costs(self, drafter: str) -> StepCosts:
        """Return the costs of steps with a drafter.

        Raises:
            ConfigError: They are not known; with the reason.
        """
        if drafter not in self.drafters:
            raise ConfigError(self.missing.get(drafter, f"{self.name} has no times of this drafter."))
        return self.drafters[drafter]
