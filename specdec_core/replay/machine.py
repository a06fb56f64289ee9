"""A machine, as a replay sees it: how long steps take on it. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec_core.interface.errors import ConfigError
from specdec_core.record.record import Record


@dataclass(frozen=True)
class Machine:
    """The times of steps on a machine.

    Attributes:
        name: Its name in tables.
        device: Hardware of the target.
        verify: T(k): seconds of the target's forward pass over k + 1 positions, k = 0, 1, ...
        overhead: Seconds of a step outside of both models.
        draft: D(k): seconds in the drafter for a draft of k tokens, k = 0, 1, ..., by drafter.
    """

    name: str
    device: str
    verify: tuple[float, ...]
    overhead: float = 0.0
    draft: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def check(self, gamma: int, draft_seconds: tuple[float, ...]) -> None:
        """Refuse draft lengths that were not timed.

        Args:
            gamma: The longest draft.
            draft_seconds: D(k) of the drafter.

        Raises:
            ConfigError: The times end before.
        """
        for name, times in (("T(k)", self.verify), ("D(k)", draft_seconds)):
            if len(times) <= gamma:
                known = f"up to k = {len(times) - 1}" if times else "for no k"
                raise ConfigError(
                    f"drafts of up to {gamma} tokens take times that were not measured: {name} of {self.name} is "
                    f"known {known}. Measure with --gamma {gamma} or more, or replay with a smaller gamma."
                )


def machine_of(record: Record) -> Machine | None:
    """Return the machine that recorded, or None if its times were not recorded."""
    times = record.header.times
    if times is None:
        return None
    return Machine("recorded", times.device, tuple(times.verify), times.overhead)
