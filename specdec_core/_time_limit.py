"""Time limits: who is waited for is named, and what does not end is interrupted. Imports no torch."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from math import ceil
from time import monotonic
from types import FrameType

_TICK = 1.0
"""Seconds between looks at the clock and the memory. They go on after the limit: a plugin may catch everything."""
_MEMORY = 4 << 30
"""Bytes by which a check may let the memory of the process grow: a list that grows without end is no better than a
loop without one."""
_GRACE = 5.0
"""Seconds after a limit at which a thread reports that the check could not be interrupted."""
_DEBUGGERS = ("bdb", "pdb", "pydevd")


class TimeLimitExceeded(BaseException):
    """Something took longer than its limit, or ever more memory.

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
    interrupts = can_interrupt()
    report = threading.Timer(
        seconds + (_GRACE if interrupts else 0), _report, (what, seconds, threading.get_ident())
    )
    report.daemon = True
    report.start()
    began, memory = monotonic(), _peak_memory() if interrupts else 0

    def look(frame: FrameType | None) -> None:  # noqa: ARG001  (the signature of a look)
        took, grown = monotonic() - began, _peak_memory() - memory
        if took > seconds - _TICK / 100 or grown > _MEMORY:
            raise TimeLimitExceeded(took, grown)

    try:
        with looking(look, seconds) if interrupts else nullcontext():
            yield
    finally:
        report.cancel()


def can_interrupt() -> bool:
    """Whether `looking` works here: on the main thread of a POSIX system, unless a debugger traces it."""
    return (
        not _debugged() and threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    )


@contextmanager
def looking(look: Callable[[FrameType | None], None], seconds: float) -> Iterator[None]:
    """Call a function in the main thread every tick, and at a limit, unless an earlier timer runs already.

    Args:
        look: Called with the frame that is interrupted. What it raises is raised there.
        seconds: The limit.
    """
    outer_left, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < outer_left <= seconds:
        yield
        return
    active, began = [True], monotonic()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (the signature of a handler)
        if active[0]:
            try:
                look(frame)
            except BaseException:
                # Not again while this one is on its way out, which would leave the timer on.
                signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
                raise

    outer = signal.signal(signal.SIGALRM, handle)
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
    say(f"\nspecdec: {what} has run for {seconds:g} s and cannot be interrupted. It is at:\n{stack}\n")


def say(text: str) -> None:
    """Write to standard error, as far as that is possible now."""
    with suppress(RuntimeError, OSError, ValueError):  # it is being written to, or closed
        sys.stderr.write(text)
        sys.stderr.flush()


def _debugged() -> bool:
    """Whether a debugger traces this thread. Coverage tools trace, too, and are none."""
    return getattr(sys.gettrace(), "__module__", "").split(".")[0] in _DEBUGGERS
