"""A machine, as a replay sees it: how long steps take on it. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import median
from typing import TYPE_CHECKING

from specdec_core.interface.errors import ConfigError

if TYPE_CHECKING:
    from specdec_core.record.record import Record

NOISY = 0.02
"""Noise above this is warned of: seconds of steps that are known no better tell few runs apart."""
TIME_AGAIN = (
    "Time the steps again while the machine does nothing else: `specdec record --timings` renews the times in a "
    "record, `specdec measure` those in the file of a machine"
)
"""What to do where times are noisy."""


@dataclass(frozen=True)
class Machine:
    """The times of steps on a machine.

    Attributes:
        name: Its name in tables.
        device: Hardware of the target.
        verify: T(k): seconds of the target's forward pass over k + 1 positions, k = 0, 1, ...
        overhead: Seconds of a step outside of both models.
        draft: D(k): seconds in the drafter for a draft of k tokens, k = 0, 1, ..., by drafter.
        verify_spread: How well each T(k) is known: half its 95% interval over its value; None where that is not
            known.
        draft_spread: The same for D(k), by drafter.
    """

    name: str
    device: str
    verify: tuple[float, ...]
    overhead: float = 0.0
    draft: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    verify_spread: tuple[float | None, ...] = ()
    draft_spread: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def noise(self, draft_seconds: Sequence[float] = (), draft_spread: Sequence[float] = ()) -> float | None:
        """Return the noise of the times of steps: how well they are known, as a fraction.

        It is half the 95% interval of T(k) + D(k) over its value: the median over the draft lengths k.

        Args:
            draft_seconds: D(k) of a drafter; empty for the noise of T(k) alone.
            draft_spread: How well each D(k) is known.

        Returns:
            The noise; None if it is not known how well T(k) is.
        """
        none = (0.0,) * len(self.verify)
        lengths = zip(self.verify, self.verify_spread, draft_seconds or none, draft_spread or none, strict=False)
        found = [
            hypot(t * t_spread, d * d_spread) / (t + d)
            for t, t_spread, d, d_spread in lengths
            if t_spread is not None and t > 0
        ]
        return median(found) if found else None

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
    return Machine("recorded", times.device, times.verify, times.overhead, verify_spread=times.verify_spread)
