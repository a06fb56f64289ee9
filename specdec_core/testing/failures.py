"""The failure of a check: what it did, got and expected."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specdec_core.interface.errors import SpecdecError

_KIT = Path(__file__).parent


class CheckFailure(pytest.fail.Exception):  # type: ignore[misc, name-defined]
    """A plugin breaks a rule of the plugin interface. pytest reports it without a traceback.

    Args:
        did: What the check did.
        got: What came back.
        expected: What should have come back.
        hint: What usually fixes it.
    """

    def __init__(self, did: str, got: str, expected: str, hint: str | None = None) -> None:
        parts = {"did": did, "got": got, "expected": expected} | ({"hint": hint} if hint else {})
        lines = (f"{f'{word}:':<10}" + text.strip().replace("\n", "\n" + " " * 10) for word, text in parts.items())
        super().__init__("\n".join(lines), pytrace=False)


@contextmanager
def calling(did: str, expected: str = "no exception", hint: str | None = None) -> Iterator[None]:
    """Report an exception that a plugin raises as a failure.

    Args:
        did: What was done.
        expected: What should have come back.
        hint: What usually fixes it.
    """
    try:
        yield
    except Exception as error:
        raise CheckFailure(did, format_error(error), expected, hint) from None


def format_error(error: BaseException) -> str:
    """Return the message of an error that explains itself, else the traceback without the frames of the core."""
    cause = error
    while isinstance(cause, SpecdecError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, SpecdecError):
        return str(error)
    formatted = traceback.TracebackException.from_exception(cause)
    chain = [formatted]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    is_own = any(not Path(frame.filename).is_relative_to(_KIT.parent) for one in chain for frame in one.stack)
    hidden = _KIT.parent if is_own else _KIT
    for one in chain:
        frames = [frame for frame in one.stack if not Path(frame.filename).is_relative_to(hidden)]
        one.stack = traceback.StackSummary.from_list(frames)
    return "".join(formatted.format()).strip()
