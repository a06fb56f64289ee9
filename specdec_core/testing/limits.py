"""Time limits for checks: what never returns is stopped, and where it was is shown."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import ceil
from time import monotonic
from types import FrameType

TIMEOUT = 60.0
"""Seconds that a check may take."""
TOTAL_TIMEOUT = 600.0
"""Seconds that all checks of a plugin may take."""
_AFTER_A_TIMEOUT = 0.1
"""The part of its limit that a check gets after one that was stopped: it likely calls the same function."""
_TIMEOUTS = 3
"""How many checks in a row are stopped before the rest is not run."""
_TICK = 1.0
"""Seconds between looks at the clock and the memory. They go on after the limit: a plugin may catch everything."""
_MEMORY = 4 << 30
"""Bytes by which a check may let the memory of the process grow: a list that grows without end is no better than a
loop without one."""
_GRACE = 5.0
"""Seconds after a limit at which a thread reports that the check could not be interrupted."""
_DEBUGGERS = ("bdb", "pdb", "pydevd")


class TimeLimitExceeded(BaseException):
    """A check took longer than its limit, or ever more memory.

    Not an `Exception`, so that a plugin that catches those is stopped, too.

    Args:
        seconds: How long it took.
        grown: By how many bytes the memory has grown.

    Attributes:
        did: What the check had done by then, one action per line.
    """

    def __init__(self, seconds: float, grown: int = 0) -> None:
        memory = f", and {grown / (1 << 30):.0f} GiB more memory" if grown > _MEMORY else ""
        super().__init__(f"no end after {seconds:.3g} s{memory}")
        self.did = ""


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Interrupt a block that takes longer than a limit.

    On the main thread of a POSIX system, a timer signal interrupts Python code and `time.sleep`. Elsewhere, and in
    a call into C that does not return, nothing can be interrupted safely: then a thread says on standard error
    what is waited for, and where it is. There is no limit under a debugger. A timer that runs already, such as
    that of pytest-timeout, stays in force.

    Args:
        seconds: The limit; None or 0 for none.
        what: What runs, for the report of the thread.

    Raises:
        TimeLimitExceeded: The block took longer. Its traceback ends where the block was.
    """
    if not seconds or _debugged():
        yield
        return
    interrupts = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    report = threading.Timer(
        seconds + (_GRACE if interrupts else 0), _report, (what, seconds, threading.get_ident())
    )
    report.daemon = True
    report.start()
    try:
        with _alarm(seconds) if interrupts else nullcontext():
            yield
    finally:
        report.cancel()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the main thread after some seconds, unless an earlier timer runs already."""
    outer_left, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < outer_left <= seconds:
        yield
        return
    active, began, memory = [True], monotonic(), _peak_memory()

    def look(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (the signature of a handler)
        took, grown = monotonic() - began, _peak_memory() - memory
        if active[0] and (took > seconds - _TICK / 100 or grown > _MEMORY):
            # Not again while this one is on its way out, which would leave the timer on.
            signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
            raise TimeLimitExceeded(took, grown)

    outer = signal.signal(signal.SIGALRM, look)
    tick = seconds / ceil(seconds / _TICK)  # the last one is at the limit
    signal.setitimer(signal.ITIMER_REAL, tick, tick)
    try:
        yield
    finally:
        active[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if outer is None else outer)
        if outer_left:
            signal.setitimer(signal.ITIMER_REAL, max(outer_left - (monotonic() - began), 0.001))


def _peak_memory() -> int:
    """Return the most memory that the process has had, in bytes."""
    import resource  # POSIX, as the timer

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _report(what: str, seconds: float, thread: int) -> None:
    frame = sys._current_frames().get(thread)
    stack = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
    sys.stderr.write(
        f"\nspecdec: {what} has run for {seconds:g} s and cannot be interrupted. It is at:\n{stack}\n"
    )
    sys.stderr.flush()


def _debugged() -> bool:
    """Whether a debugger traces this thread. Coverage tools trace, too, and are none."""
    return getattr(sys.gettrace(), "__module__", "").split(".")[0] in _DEBUGGERS


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
