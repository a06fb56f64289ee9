"""Guarded calls into plugins: a faulty one costs speed, never a token."""

from __future__ import annotations

import inspect
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import TypeVar

from specdec_core.decoding.guard.global_settings import OF_PROCESS, OF_THREAD, read, restore
from specdec_core.decoding.guard.watch import CallTimeExceeded, CallWatch
from specdec_core.interface import Drafter, PluginError
from specdec_core.interface.errors import PluginWarning, exception_text, is_failure

T = TypeVar("T")

_DECODING = __package__.rpartition(".")[0]
"""The package whose frames call plugins."""
_PASSED_OVER = (_DECODING, "transformers", "torch")
"""Packages whose frames a warning passes over: this one, and what stands between it and a call of `generate`."""
_OF_DRAFTERS = (*OF_THREAD, *OF_PROCESS)


@dataclass(frozen=True)
class PluginFailure:
    """A plugin's error during decoding; no token was lost.

    Attributes:
        plugin: Its class.
        step: The target forward pass in which it first happened.
        message: The error.
        where: File and line of the plugin's code that raised it, such as `my_drafter.py:12`; empty if the plugin
            raised nothing and its answer was rejected.
        times: How often it happened.
    """

    plugin: str
    step: int
    message: str
    where: str = ""
    times: int = 1

    def __str__(self) -> str:
        location = f" ({self.where})" if self.where else ""
        again = f"; {self.times} times" if self.times > 1 else ""
        return f"{self.plugin} failed at step {self.step}{location}: {self.message}{again}"


def _stacklevel() -> int:
    """Return the level, for a warning of the function that calls this, of the first frame of a user."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and _is_passed_over(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_passed_over(module: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in _PASSED_OVER)


class PluginGuard:
    """Records the errors that plugins raise instead of passing them on.

    `with guard.calling(plugin):` suppresses an exception of its block and records it, `sys.exit` included. Ctrl-C
    passes, as does what ends a test. Settings of torch, and after a drafter those of the process, are as before
    after the block; a plugin that changed them has failed, but is still used.

    Args:
        strict: Raise a `PluginError` instead.
        watch: Watches the calls; one that no thread looks at by default.

    Attributes:
        step: Number of the current target forward pass, for the record.
        watch: Watches the calls.
    """

    def __init__(self, *, strict: bool, watch: CallWatch | None = None) -> None:
        self._strict = strict
        self.watch = watch or CallWatch()
        self._failures: dict[tuple[str, str], PluginFailure] = {}
        self._warned: set[str] = set()
        self._notes: dict[str, bool] = {}
        self.step = 0

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The recorded failures, in the order in which they first happened."""
        return tuple(self._failures.values())

    def warn(self) -> None:
        """Warn once of each plugin that has failed, at the line that asked for tokens."""
        for failure in self._failures.values():
            if failure.plugin not in self._warned:
                self._warned.add(failure.plugin)
                warnings.warn(
                    f"{failure}\nNo token is lost; the plugin is switched off or overruled, which costs speed. "
                    "Decoder(..., strict=True) raises instead.",
                    PluginWarning,
                    stacklevel=_stacklevel(),
                )

        for note, told in self._notes.items():
            if not told:
                self._notes[note] = True
                warnings.warn(note, PluginWarning, stacklevel=_stacklevel())

    @property
    def notes(self) -> tuple[str, ...]:
        """The decisions of plugins that were overruled, each once."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Have `warn` say, once, that a plugin was overruled, which is not a failure."""
        self._notes.setdefault(text, False)

    def child(self) -> PluginGuard:
        """Return a guard for an inner loop: it counts its own steps and records in the same list."""
        inner = PluginGuard(strict=self._strict, watch=self.watch)
        inner._failures, inner._notes = self._failures, self._notes
        return inner

    def calling(self, plugin: object, on_failure: Callable[[], None] | None = None) -> _GuardedCall:
        """Return a context manager for a call into a plugin.

        Args:
            plugin: The plugin; its class is named in the record.
            on_failure: Called after an exception was recorded.
        """
        return _GuardedCall(self, plugin, on_failure)

    def fail(self, plugin: object, error: BaseException) -> None:
        """Record a failure.

        Raises:
            PluginError: Under `strict`, with the plugin's name.
        """
        name = type(plugin).__name__
        message = failure_text(error)
        where = _where(plugin, traceback.walk_tb(error.__traceback__))
        if self._strict:
            location = f" ({where})" if where else ""
            raise PluginError(f"{name} failed at step {self.step}{location}: {message}") from error
        # A controller may fail in the same way in every step, with other numbers. That is one failure, so that the
        # record does not grow with the steps.
        kind = name, re.sub(r"[-+.\d]+", "#", message)
        known = self._failures.get(kind)
        if known is None:
            self._failures[kind] = PluginFailure(name, self.step, message, where)
        else:
            self._failures[kind] = replace(known, times=known.times + 1)


def opened(session: T | None) -> T:
    """Return a plugin's session, which must exist."""
    if session is None:
        raise PluginError("open() returned None; it must return a session.")
    return session


def failure_text(error: BaseException) -> str:
    """Return a plugin's error in one line. The message of a `PluginError` stands alone."""
    text = exception_text(error)
    says_all = isinstance(error, PluginError | CallTimeExceeded)
    return text.removeprefix(f"{type(error).__name__}: ") if says_all else text


def _own(plugin: object, frames: Iterable[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return the frames of the plugin's own package."""
    package = type(plugin).__module__.partition(".")[0]
    if package == __package__.partition(".")[0]:
        return []
    return [one for one in frames if str(one[0].f_globals.get("__name__", "")).partition(".")[0] == package]


def _frames_within(plugin: object, frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a call into a plugin with their lines, the outermost first, given the innermost."""
    frames: list[tuple[FrameType, int]] = []
    for one in traceback.walk_stack(frame) if frame is not None else ():
        is_core = str(one[0].f_globals.get("__name__", "")).startswith(_DECODING)
        if is_core and _own(plugin, frames):
            break  # who called the plugin
        frames.append(one)
    return frames[::-1]


def _where(plugin: object, frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the innermost line of the plugin's own package, as `file:line`, given frames from outside in."""
    own = _own(plugin, frames)
    if not own:
        return ""
    frame, line = own[-1]
    file, module = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
    if file.parent.name.startswith("ipykernel_"):
        return f"<cell>:{line}"  # of a notebook, whose file has no name that a reader knows
    # The path within the package: the folders above it are those of this machine.
    folders = module.count(".") + (file.name == "__init__.py")
    return f"{Path(*file.parts[-1 - folders :]).as_posix()}:{line}"


class _GuardedCall:
    """The context manager of `PluginGuard.calling`; a class, since a generator costs more in every step."""

    __slots__ = ("_before", "_guard", "_on_failure", "_outer", "_plugin", "_settings", "began", "thread")

    def __init__(self, guard: PluginGuard, plugin: object, on_failure: Callable[[], None] | None) -> None:
        self._guard = guard
        self._plugin = plugin
        self._on_failure = on_failure
        self._settings = _OF_DRAFTERS if isinstance(plugin, Drafter) else OF_THREAD

    def __enter__(self) -> None:
        self._before = read(self._settings)
        watch = self._guard.watch
        self._outer = watch.call
        self.thread = threading.get_ident()
        self.began = monotonic()
        watch.call = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        outer = self._guard.watch.call = self._outer
        if outer is not None:
            outer.began = monotonic()  # what the inner call took is not its own time
        if read(self._settings) != self._before:
            changed = " and ".join(restore(self._settings, self._before))
            if error is None or is_failure(error):
                message = f"it changed {changed} and left it so; the core has restored what was."
                self._guard.fail(self._plugin, PluginError(message))
        if error is None or not is_failure(error):
            return False
        self._guard.fail(self._plugin, error)
        if self._on_failure is not None:
            self._on_failure()
        return True

    def location(self, frame: FrameType | None) -> str:
        """Return the plugin's class and method and the line that runs: `Slow.propose (my_drafter.py:12)`."""
        frames = _frames_within(self._plugin, frame)
        own = _own(self._plugin, frames)
        method = f".{own[0][0].f_code.co_name}" if own else ""
        where = _where(self._plugin, frames)
        return f"{type(self._plugin).__name__}{method}{f' ({where})' if where else ''}"

    def is_own(self, frame: FrameType | None) -> bool:
        """Whether a frame is that of this bookkeeping."""
        return frame is not None and frame.f_code.co_filename == __file__
