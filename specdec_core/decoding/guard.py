"""Calls into plugins: one that fails costs speed, never a token."""

from __future__ import annotations

import inspect
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from specdec_core.interface import PluginError
from specdec_core.interface.errors import PluginWarning, exception_text

T = TypeVar("T")

_CORE = __package__.partition(".")[0]
_PASSED_OVER = (__package__, "transformers", "torch")
"""Packages whose frames a warning passes over: this one, and what stands between it and a call of `generate`."""


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


class PluginGuard:
    """Records the errors that plugins raise instead of passing them on.

    `with guard.calling(plugin):` suppresses an exception of its block and records it.

    Args:
        strict: Raise a `PluginError` instead.

    Attributes:
        step: Number of the current target forward pass, for the record.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._failures: dict[tuple[str, str], PluginFailure] = {}
        self._notes: list[str] = []
        self._warned: set[str] = set()
        self.step = 0

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The recorded failures, in the order in which they first happened."""
        return tuple(self._failures.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """The decisions of plugins that were overruled, each once."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Have `warn` say, once, that a plugin was overruled, which is not a failure."""
        if text not in self._notes:
            self._notes.append(text)

    def warn(self) -> None:
        """Warn once of each plugin that has failed or was overruled, at the line that asked for tokens."""
        texts = {note: note for note in self._notes}
        for one in self._failures.values():
            texts.setdefault(
                one.plugin,
                f"{one}\nNo token is lost; decoding goes on without its answer, which costs speed. "
                "Decoder(..., strict=True) raises instead.",
            )
        for key, text in texts.items():
            if key not in self._warned:
                self._warned.add(key)
                warnings.warn(text, PluginWarning, stacklevel=_stacklevel())

    def child(self) -> PluginGuard:
        """Return a guard for an inner loop: it counts its own steps and records in the same list."""
        inner = PluginGuard(strict=self._strict)
        inner._failures, inner._notes = self._failures, self._notes
        return inner

    def calling(self, plugin: object, on_failure: Callable[[], None] | None = None) -> _GuardedCall:
        """Return a context manager for a call into a plugin.

        Args:
            plugin: The plugin; its class is named in the record.
            on_failure: Called after an exception was recorded.
        """
        return _GuardedCall(self, plugin, on_failure)

    def fail(self, plugin: object, error: Exception) -> None:
        """Record a failure.

        Raises:
            PluginError: Under `strict`, with the plugin's name.
        """
        name, where = type(plugin).__name__, _where(plugin, error)
        message = failure_text(error)
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


class _GuardedCall:
    """The context manager of `PluginGuard.calling`; a class, since a generator costs more in every step."""

    __slots__ = ("_guard", "_on_failure", "_plugin")

    def __init__(self, guard: PluginGuard, plugin: object, on_failure: Callable[[], None] | None) -> None:
        self._guard, self._plugin, self._on_failure = guard, plugin, on_failure

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.fail(self._plugin, error)
        if self._on_failure is not None:
            self._on_failure()
        return True


def opened(session: T | None) -> T:
    """Return a plugin's session, which must exist."""
    if session is None:
        raise PluginError("open() returned None; it must return a session.")
    return session


def failure_text(error: Exception) -> str:
    """Return a plugin's error in one line. The message of a `PluginError` stands alone."""
    return " ".join(str(error).split()) if isinstance(error, PluginError) else exception_text(error)


def _stacklevel() -> int:
    """Return the level, for a warning of the function that calls this, of the first frame of a user."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(
        tuple(f"{package}." for package in _PASSED_OVER)
    ):
        level, frame = level + 1, frame.f_back
    return level


def _where(plugin: object, error: Exception) -> str:
    """Return the innermost line of the plugin's own package that an error passed, as `file:line`."""
    package = type(plugin).__module__.partition(".")[0]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if package != _CORE and module.partition(".")[0] == package:
            file = Path(frame.f_code.co_filename)
            if file.parent.name.startswith("ipykernel_"):
                return f"<cell>:{line}"  # of a notebook, whose file has no name that a reader knows
            # The path within the package: the folders above it are those of this machine.
            folders = module.count(".") + (file.name == "__init__.py")
            return f"{Path(*file.parts[-1 - folders :]).as_posix()}:{line}"
    return ""
