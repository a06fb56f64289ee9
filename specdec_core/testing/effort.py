"""The effort of a check: fewer texts and samples where a plugin is slow, or where a few seconds must do."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar

_CALLS, _ROWS = 2_000, 35_000
"""How many calls of `propose` a whole kit makes, and for how many rows in all."""
_STEPS = 3_000
"""How many steps of simulated batches a kit of a controller makes."""
_SHORT_CALLS, _SHORT_ROWS = 760, 1_600
"""How many a shortened kit makes."""
_AFFORDABLE, _ENDURABLE = 40.0, 100.0
"""Seconds that a plugin may take in all before the checks are shortened, and before they try one target only."""
_NONCENTRALITY = 50.0
"""Of a chi-square statistic that falls below the p-value at which checks fail in about 9 of 10 samples."""


@dataclass(frozen=True)
class Effort:
    """How much the checks of a plugin try.

    Attributes:
        short: Whether to try fewer texts, settings and samples.
        call_seconds: Seconds that a call of the plugin takes.
        row_seconds: Seconds that it takes in addition for each row of a batch.
    """

    short: bool = False
    call_seconds: float = 0.0
    row_seconds: float = 0.0

    FULL: ClassVar[Effort]
    QUICK: ClassVar[Effort]

    @classmethod
    def of_drafter(cls, one_row: float, several: float, rows: int) -> Effort:
        """Return what is affordable with a drafter.

        Args:
            one_row: Seconds of a call for one row.
            several: Seconds of a call for several rows.
            rows: How many those are.
        """
        row = max(0.0, several - one_row) / (rows - 1) if rows > 1 else 0.0
        call = max(0.0, one_row - row)
        return cls(_CALLS * call + _ROWS * row > _AFFORDABLE, call, row)

    @classmethod
    def of_controller(cls, step: float) -> Effort:
        """Return what is affordable with a controller that takes `step` seconds in a step."""
        return cls(_STEPS * step > _AFFORDABLE, step)

    def times(self, full: int, short: int) -> int:
        """Return how often to try something."""
        return short if self.short else full

    def samples(self, full: int, batch: int, seconds: float) -> int:
        """Return a sample size: `full`, halved until the plugin takes no longer than `seconds`.

        Args:
            full: The size of the first sample, where time does not matter.
            batch: How many are sampled together.
            seconds: How long a plugin may take; each sample takes about three calls.
        """
        least = 16 if self.one_target else 32
        size = full // 4 if self.short and not self.call_seconds + self.row_seconds else full
        while self.short and size > least:
            cost = 3 * (ceil(size / batch) * self.call_seconds + size * self.row_seconds)
            if cost <= seconds:
                break
            size //= 2
        return max(size, min(least, full))

    @property
    def one_target(self) -> bool:
        """Whether there is time for one target only."""
        return _SHORT_CALLS * self.call_seconds + _SHORT_ROWS * self.row_seconds > _ENDURABLE

    @property
    def slow_rows(self) -> bool:
        """Whether most of the time goes to the rows of a batch, so that fewer rows save some."""
        return self.short and 4 * self.row_seconds > self.call_seconds

    @property
    def why(self) -> str:
        """Why checks are shortened."""
        if not self.call_seconds + self.row_seconds:
            return "this is a quick run"
        per_row = f" and {self.row_seconds:.2g} s for each row" if self.row_seconds > 1e-3 else ""
        return f"a call takes about {self.call_seconds:.2g} s{per_row}"


Effort.FULL = Effort()
Effort.QUICK = Effort(short=True)


def visible_error(samples: int) -> str:
    """Return how large an error a chi-square test of this many samples finds, as a share of the probability.

    An error that moves the share s has a noncentrality of at least samples (2 s)^2, by Cauchy-Schwarz.
    """
    return f"{min(1.0, sqrt(_NONCENTRALITY / samples) / 2):.0%}"
