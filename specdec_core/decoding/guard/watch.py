"""Calls into plugins that take long: named while they are waited for, and interrupted after a limit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Protocol

from specdec_core._time_limit import can_interrupt, looking, say

NOTICE = 30.0
"""Seconds after which a call is named that has no limit, or a longer one."""
_PAUSE = 1.0
"""The longest time between looks at a call, in seconds."""


class Call(Protocol):
    """A call into a plugin that is going on.

    Attributes:
        began: When it began, by `monotonic`, or when it went on after a call into another plugin.
        thread: The thread that makes it.
    """

    began: float
    thread: int

    def location(self, frame: FrameType | None) -> str:
        """Return the plugin's method and line, for people, given the innermost frame of the thread."""

    def is_own(self, frame: FrameType | None) -> bool:
        """Whether a frame is that of the call's own bookkeeping, which must not be interrupted."""


class CallTimeExceeded(BaseException):
    """A call into a plugin took longer than its limit. Not an `Exception`, which plugins catch.

    Args:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the call took longer than {seconds:g} s (plugin_timeout).")


class CallWatch:
    """Watches the calls into plugins of one batch. A call itself only assigns `call`: a thread looks at the clock.

    Args:
        limit: Seconds that a call may take before it is interrupted, where that is possible; None for any time. It
            is possible on the main thread of a POSIX system, except in a call into C that does not return.

    Attributes:
        call: The innermost call that is going on; None outside of all.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.call: Call | None = None
        self._limit = limit
        self._notice = NOTICE if limit is None else min(limit, NOTICE)
        self._named: Call | None = None
        self._again = 0.0

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Interrupt calls that exceed the limit within a block, if there is a limit and it is possible."""
        if self._limit is None or not can_interrupt():
            yield
        else:
            with looking(self._interrupt, self._limit):
                yield

    def look(self) -> float:
        """Name the call that is going on if it takes long; return in how many seconds to look again."""
        call = self.call
        if call is None:
            return min(self._notice, _PAUSE)
        took = monotonic() - call.began
        due = self._again if self._named is call else self._notice
        if took >= due:
            self._name(call, took, sys._current_frames().get(call.thread))
        return min(self._notice, _PAUSE)

    def _name(self, call: Call, took: float, frame: FrameType | None) -> None:
        self._named, self._again = call, 2 * took
        say(f"specdec: waiting for {call.location(frame)} for {took:.3g} s\n")

    def _interrupt(self, frame: FrameType | None) -> None:
        call, limit = self.call, self._limit
        if call is None or limit is None or call.is_own(frame):
            return
        took = monotonic() - call.began
        if took >= limit:
            if self._named is not call:
                self._name(call, took, frame)
            raise CallTimeExceeded(limit)


class _Watchdog:
    """Looks at the watches of all batches, from one thread that is started when there is something to watch."""

    def __init__(self) -> None:
        self._watches: set[CallWatch] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, watch: CallWatch) -> None:
        with self._changed:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():  # a fork of the process has no such thread
                self._thread = threading.Thread(target=self._run, name="specdec-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, watch: CallWatch) -> None:
        with self._changed:
            self._watches.discard(watch)

    def _run(self) -> None:
        while True:
            with self._changed:
                watches = tuple(self._watches)
                if not watches:
                    self._changed.wait()
                    continue
            pause = min(watch.look() for watch in watches)
            with self._changed:
                self._changed.wait(pause)


_WATCHDOG = _Watchdog()


@contextmanager
def watched(limit: float | None) -> Iterator[CallWatch]:
    """Watch the calls into plugins within a block.

    Args:
        limit: As for `CallWatch`.
    """
    watch = CallWatch(limit)
    _WATCHDOG.add(watch)
    try:
        yield watch
    finally:
        _WATCHDOG.discard(watch)
