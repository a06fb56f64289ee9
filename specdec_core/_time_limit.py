"""Time limits: a plugin that takes long is named, and one that does not end is interrupted. Imports no torch."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from math import ceil, inf
from time import monotonic, process_time
from types import FrameType

_TICK = 1.0
"""Seconds between looks at the clock and the memory. They go on after the limit: a plugin may catch everything."""
_MEMORY = 4 << 30
"""Bytes by which a check may let the memory of the process grow: a list that grows without end is no better than a
loop without one."""
_GRACE = 5.0
"""Seconds after a limit at which a thread reports that the check could not be interrupted."""
_PATIENCE = 5
"""How many times its limit something may take by the clock, while it computes nothing or other processes run."""
_DEBUGGERS = ("bdb", "pdb", "pydevd")


class TimeLimitExceeded(BaseException):
    """Something took longer than its limit, or ever more memory.

    Not an `Exception`, so that a plugin that catches those is stopped, too.

    Args:
        after: How long it took, in words.
        grown: By how many bytes the memory has grown.

    Attributes:
        did: What the check had done by then, one action per line.
    """

    def __init__(self, after: str, grown: int = 0) -> None:
        memory = f", and {grown / (1 << 30):.0f} GiB more memory" if grown > _MEMORY else ""
        super().__init__(f"no end after {after}{memory}")
        self.did = ""


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Interrupt a block that takes longer than a limit.

    What counts is the time for which this process computes, so that a block is not stopped because other processes
    keep the machine busy; threads that compute at once count no more than the clock. Something that hangs computes
    nothing: it is stopped after five times the limit by the clock, or at the end of a timer that runs already.

    On the main thread of a POSIX system, a timer signal interrupts Python code and `time.sleep`. Elsewhere, and in
    a call into C that does not return, nothing can be interrupted safely: then a thread says on standard error
    what is waited for, and where it is. A debugger lifts the limit. A timer that runs already, such as
    that of pytest-timeout, stays in force.

    Args:
        seconds: The limit; None or 0 for none.
        what: What runs, for the report of the thread.

    Raises:
        TimeLimitExceeded: The block took longer. Its traceback ends where the block was, and its message says
            which of the two limits it was.
    """
    if not seconds or _debugged():
        yield
        return
    interrupts = can_interrupt()
    spent = _Spent(seconds, signal.getitimer(signal.ITIMER_REAL)[0] if interrupts else 0)
    done = threading.Event()
    late = _GRACE if interrupts else 0
    threading.Thread(target=_watch, args=(spent, done, late, what, threading.get_ident()), daemon=True).start()
    memory = _peak_memory() if interrupts else 0

    def look(frame: FrameType | None) -> None:  # noqa: ARG001  (the signature of a look)
        grown = _peak_memory() - memory
        if spent.over() or grown > _MEMORY:
            raise TimeLimitExceeded(str(spent), grown)

    try:
        with looking(look, seconds) if interrupts else nullcontext():
            yield
    finally:
        done.set()


class _Spent:
    """The time that a block has taken.

    Args:
        seconds: How long it may compute.
        outer: Seconds until another timer ends; 0 for none.
    """

    def __init__(self, seconds: float, outer: float) -> None:
        self._limit, self._most = seconds, min(_PATIENCE * seconds, outer or inf)
        self._began = monotonic(), process_time()

    def over(self, late: float = 0) -> bool:
        """Whether it is longer than a limit, by some seconds."""
        took, own = self._times()
        late -= _TICK / 100  # a tick may come early
        return own > self._limit + late or took > self._most + late

    def __str__(self) -> str:
        took, own = self._times()
        if own > self._limit - _TICK / 100:
            return f"{own:.3g} s of computing"
        return f"{took:.3g} s, in {own:.2g} s of which it computed"

    def _times(self) -> tuple[float, float]:
        """Return the seconds by the clock, and those of computing."""
        began, began_own = self._began
        took = monotonic() - began
        return took, min(took, process_time() - began_own)


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


def _watch(spent: _Spent, done: threading.Event, late: float, what: str, thread: int) -> None:
    """Report a block that goes on after its limit."""
    while not spent.over(late):
        if done.wait(_TICK):
            return
    frame = sys._current_frames().get(thread)
    stack = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
    say(f"\nspecdec: {what} has run for {spent} and cannot be interrupted. It is at:\n{stack}\n")


def say(text: str) -> None:
    """Write to standard error, as far as that is possible now."""
    with suppress(RuntimeError, OSError, ValueError):  # it is being written to, or closed
        sys.stderr.write(text)
        sys.stderr.flush()


def _debugged() -> bool:
    """Whether a debugger traces this thread. Coverage tools trace, too, and are none."""
    return getattr(sys.gettrace(), "__module__", "").split(".")[0] in _DEBUGGERS
