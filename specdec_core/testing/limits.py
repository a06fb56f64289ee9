"""Time limits for checks: how long each may take, and all of them."""

from __future__ import annotations

from time import monotonic

TIMEOUT = 60.0
"""Seconds that a check may take."""
TOTAL_TIMEOUT = 600.0
"""Seconds that all checks of a plugin may take."""
_AFTER_A_TIMEOUT = 0.1
"""The part of its limit that a check gets after one that was stopped: it likely calls the same function."""
_TIMEOUTS = 3
"""How many checks in a row are stopped before the rest is not run."""


class Limits:
    """The time that each check of a plugin gets, and whether it is of use to run any more.

    Args:
        timeout: Seconds that a check may take; None for no limit.
        total: Seconds that all may take; None for no limit.

    Attributes:
        stopped: Why no more checks run; empty while they do.
    """

    def __init__(self, timeout: float | None, total: float | None) -> None:
        self._timeout, self._total = timeout, total
        self._began = monotonic()
        self._in_a_row = 0
        self.stopped = ""

    def of_the_next(self) -> tuple[float | None, bool]:
        """Return the limit of the next check, and whether it is what is left of the limit for all."""
        limit = self._timeout
        if limit is not None and self._in_a_row:
            limit *= _AFTER_A_TIMEOUT
        if self._total is None:
            return limit, False
        left = self._total - (monotonic() - self._began)
        if left <= 0:
            self.spent()
        return (limit, False) if limit is not None and limit <= left else (max(left, 1e-3), True)

    def spent(self) -> None:
        """Run no more checks, since the time for all of them is over."""
        self.stopped = self.stopped or f"all checks together may take {self._total:g} s"

    def learn(self, *, timed_out: bool) -> None:
        """Count the checks in a row that were stopped by their limits."""
        self._in_a_row = self._in_a_row + 1 if timed_out else 0
        if self._in_a_row >= _TIMEOUTS:
            self.stopped = f"{_TIMEOUTS} checks in a row did not end"
