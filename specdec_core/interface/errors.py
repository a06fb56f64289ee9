"""Errors the user can fix: each says what was given, what is allowed and what to do."""

import json
import os
import re
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_MAX_NAMES = 100
"""Maximum number of available names that a message lists."""
_MAX_MESSAGE = 8_000
"""Maximum number of characters of a message."""
_MODEL, _GAMMA = "`drafter: {name: transformer, model: ...}`", "`gamma`"
_ELSEWHERE = {
    "draft_model": _MODEL,
    "assistant_model": _MODEL,
    "num_speculative_tokens": _GAMMA,
    "num_assistant_tokens": _GAMMA,
    "prompt_lookup_num_tokens": "`drafter: prompt-copy`, with `gamma`",
    "prompt_lookup_max": "`max_match` of the drafter prompt-copy",
    "prompt_lookup_min": "`min_match` of the drafter prompt-copy",
}
"""What settings of transformers and vLLM are called here."""


class SpecdecError(Exception):
    """Base of every error that the user can fix.

    The command line prints its message without a traceback and exits with `exit_code`. A message may quote input
    of any length, so the middle of a very long one is left out.
    """

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        text = str(message)
        if len(text) > _MAX_MESSAGE:
            begin, end = text[: _MAX_MESSAGE - 2000], text[-1900:]
            text = f"{begin} [... {len(text) - len(begin) - len(end):,} characters ...] {end}"
        super().__init__(text)


class ConfigError(SpecdecError):
    """A study, prompt file or option holds an invalid value."""


class ArgumentError(ConfigError, TypeError):
    """An argument of a Python function is of a type that it does not take, or is unknown."""


class ModelError(SpecdecError):
    """A model cannot be loaded, or cannot be decoded by this framework; the reason is in the message."""


class OutOfMemoryError(SpecdecError):
    """The memory of a device does not hold a batch; the message says which, and what to do."""


class PromptError(SpecdecError):
    """A prompt is empty, too long for the model, or not readable."""


class PluginError(SpecdecError):
    """A plugin is missing, broken, in conflict with another, or broke the rules of the interface."""


class NumericsError(SpecdecError):
    """The target returned logits that are not a distribution (NaN, or minus infinity everywhere)."""


class PluginWarning(RuntimeWarning):
    """A plugin failed while text was generated, or was overruled. No token was lost."""


def exception_text(error: BaseException) -> str:
    """Return the type and the message of an exception in one line.

    Paths below the home folder begin with `~`, since results that are passed on hold such lines.
    """
    message = without_home(" ".join(str(error).split()))
    return f"{type(error).__name__}: {shortened(message, 1000)}" if message else type(error).__name__


def raised_text(error: BaseException) -> str:
    """Return `exception_text` with the file and the line that raised the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    location = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{exception_text(error)}{location}"


def unknown_name(
    what: str, given: str, available: Iterable[str], hint: str = "", aliases: Iterable[str] = ()
) -> str:
    """Return a message for an unknown name, with near misses and all available names.

    Args:
        what: Kind of the named thing, such as `drafter`.
        given: The unknown name.
        available: All valid names.
        hint: What to say instead of near misses, where the mistake is known.
        aliases: Names that are valid too, and are suggested but not listed.
    """
    names = sorted(available)
    hint = hint or (f"Here it is {_ELSEWHERE[given]}." if given in _ELSEWHERE else "")
    hint = f" {hint}" if hint else did_you_mean(given, [*names, *aliases])
    given = shortened(given)
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"unknown {what} {given!r}.{hint} Available: {', '.join(names[:_MAX_NAMES]) or 'none'}{more}."


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """Return a question with the names that resemble the given one, or an empty text.

    Args:
        given: The unknown name.
        names: Names that it may have been meant to be.
    """
    near = get_close_matches(shortened(given), sorted(names), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def shortened(text: str, length: int = 120) -> str:
    """Return the beginning of a text that is too long for a message.

    Args:
        text: What was given.
        length: The most characters to return.
    """
    return text if len(text) <= length else f"{text[: length - 3]}..."


def without_home(text: str) -> str:
    """Return a text in which the user's home folder is written as `~`."""
    home = os.path.expanduser("~")  # noqa: PTH111 (unlike Path, it raises nothing for a user without a home folder)
    return text if home == "/" else re.sub(rf"(?<![\w/.-]){re.escape(home)}(?![\w.-])", "~", text)


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Return a line for each value in which two pieces of plain data differ.

    Args:
        before: What is there.
        now: What it is compared with.
        where: Dotted key of both.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        inside = f"{where}." if where else ""
        return [d for key in keys for d in differences(before.get(key), now.get(key), f"{inside}{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [d for index, pair in pairs for d in differences(*pair, f"{where}[{index}]")]
    if isinstance(before, list) and isinstance(now, list):
        return [f"{where}: {len(before)} entries there, {len(now)} now"]
    if before == now:
        return []
    return [f"{where}: {shortened(json.dumps(before), 40)} there, {shortened(json.dumps(now), 40)} now"]


@contextmanager
def reading(
    path: Path, error: type[SpecdecError], expected: str, nearby: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Turn an exception raised while a text file is read into an error the user can fix.

    Args:
        path: The file.
        error: The error to raise.
        expected: Description of the expected content.
        nearby: Returns a hint for a missing file, such as similar names.

    Raises:
        SpecdecError: The file is missing, is not UTF-8 text, or cannot be read.
    """
    try:
        yield
    except FileNotFoundError as cause:
        raise error(f"{path}: the file does not exist.{nearby()}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"{path}: this is not a text file ({_not_utf8(path)}); expected {expected}.") from cause
    except (OSError, EOFError, zlib.error) as cause:  # the last two are of a broken file of gzip
        raise error(f"{path}: cannot be read: {getattr(cause, 'strerror', None) or cause}.") from cause


def _not_utf8(path: Path) -> str:
    """Return where a file is not UTF-8; the exception counts from the part that was being decoded."""
    if path.is_file() and path.suffix.lower() != ".gz":  # a pipe cannot be read again
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    return f"line {number}: byte {error.start} is not UTF-8"
    return "it is not UTF-8"
