"""Calls into plugins: what one does wrong costs speed, never a token."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from specdec_core.interface import PluginError, PluginWarning


@dataclass(frozen=True)
class PluginFailure:
    """What a plugin did wrong during decoding; no token was lost.

    Attributes:
        plugin: Its class.
        step: The target forward pass in which it first happened.
        message: The error.
        where: File and line of the plugin's code that raised it, such as `my_drafter.py:12`; empty if the plugin
            raised nothing and its answer was refused.
        times: How often it happened.
    """

    plugin: str
    step: int
    message: str
    where: str = ""
    times: int = 1

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        again = f"; {self.times} times" if self.times > 1 else ""
        return f"{self.plugin} failed at step {self.step}{place}: {self.message}{again}"


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
        self._warned: set[str] = set()
        self.step = 0

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The recorded failures, in the order in which they first happened."""
        return tuple(self._failures.values())

    def warn(self, stacklevel: int) -> None:
        """Warn once of each plugin that has failed.

        Args:
            stacklevel: As for `warnings.warn`; 1 is the caller of this.
        """
        for failure in self._failures.values():
            if failure.plugin not in self._warned:
                self._warned.add(failure.plugin)
                warnings.warn(
                    f"{failure}\nNo token is lost; the plugin is switched off or overruled, which costs speed. "
                    "Decoder(..., strict=True) raises instead.",
                    PluginWarning,
                    stacklevel=stacklevel + 1,
                )

    def child(self) -> PluginGuard:
        """Return a guard for an inner loop: it counts its own steps and records in the same list."""
        inner = PluginGuard(strict=self._strict)
        inner._failures = self._failures
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
        name = type(plugin).__name__
        message = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        if self._strict:
            where = _where(plugin, error)
            place = f" ({where})" if where else ""
            raise PluginError(f"{name} failed at step {self.step}{place}: {message}") from error
        # A controller may fail in the same way in every step, with other numbers. That is one failure, so that the
        # record does not grow with the steps.
        kind = name, re.sub(r"[-+.\d]+", "#", message)
        known = self._failures.get(kind)
        if known is None:
            self._failures[kind] = PluginFailure(name, self.step, message, _where(plugin, error))
        else:
            self._failures[kind] = replace(known, times=known.times + 1)


def _where(plugin: object, error: Exception) -> str:
    """Return the innermost line of the plugin's own package that an error passed through, as `file:line`."""
    package = type(plugin).__module__.partition(".")[0]
    own = [
        (frame.f_globals.get("__name__", ""), Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package
    ]
    if not own or package == __package__.partition(".")[0]:
        return ""
    module, file, line = own[-1]
    if file.parent.name.startswith("ipykernel_"):
        return f"<cell>:{line}"  # of a notebook, whose file has no name that a reader knows
    # The path within the package: the folders above it are those of this machine.
    folders = module.count(".") + (file.name == "__init__.py")
    return f"{Path(*file.parts[-1 - folders :]).as_posix()}:{line}"


class _GuardedCall:
    """The context manager of `PluginGuard.calling`; a class, since a generator costs more in every step."""

    __slots__ = ("_guard", "_on_failure", "_plugin")

    def __init__(self, guard: PluginGuard, plugin: object, on_failure: Callable[[], None] | None) -> None:
        self._guard = guard
        self._plugin = plugin
        self._on_failure = on_failure

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.fail(self._plugin, error)
        if self._on_failure is not None:
            self._on_failure()
        return True
