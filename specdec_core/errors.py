"""Errors that a person can mend: each says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class SpecdecError(Exception):
    """Base of every error that the user of specdec can mend.

    The command line prints its message without a traceback and exits with `exit_code`.
    """

    exit_code = 2


class ConfigError(SpecdecError):
    """A study, prompt file or option says something that is not allowed."""


class ModelError(SpecdecError):
    """A model cannot be loaded, or cannot be decoded by this framework; the reason is in the message."""


class PromptError(SpecdecError):
    """A prompt is empty, too long for the model, or not readable."""


class PluginError(SpecdecError):
    """A plugin is missing, broken, in conflict, or did something the border does not allow."""


class NumericsError(SpecdecError):
    """The target returned logits that are not a distribution (NaN, or minus infinity everywhere)."""


def unknown_name(what: str, given: str, available: Iterable[str]) -> str:
    """Return a message for a name that does not exist: near misses first, then all there is.

    Args:
        what: The kind of thing, e.g. `drafter`.
        given: The name as it was written.
        available: Every name that would have been right.
    """
    names = sorted(available)
    near = get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"unknown {what} {given!r}.{hint} Available: {', '.join(names) or 'none'}."


@contextmanager
def reading(
    path: Path, error: type[SpecdecError], expected: str, nearby: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Turn what goes wrong while a text file is read into an error that says what to do.

    Args:
        path: The file.
        error: The error to raise.
        expected: What should be in it.
        nearby: Says, where the file is missing, what there is instead.

    Raises:
        SpecdecError: Of the given type, when the file is missing, is no text in UTF-8, or cannot be read.
    """
    try:
        yield
    except FileNotFoundError as cause:
        raise error(f"{path}: there is no such file.{nearby()}") from cause
    except UnicodeDecodeError as cause:
        place = f"byte {cause.start} is not UTF-8"
        raise error(f"{path}: this is no text file ({place}); expected {expected}.") from cause
    except OSError as cause:
        raise error(f"{path}: cannot be read: {cause.strerror or cause}.") from cause
