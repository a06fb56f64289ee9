"""Causes of failed checks: which failures have one cause, and which function of the author must change."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_core._time_limit import TimeLimitExceeded
from specdec_core.interface import AutoregressiveDrafter, DeterministicDrafter, Drafter, DraftSession
from specdec_core.interface.errors import PluginError
from specdec_core.testing.registration import CheckFailure, format_error

_CORE = Path(__file__).parents[1]

_MUST_RETURN = {
    "draft": (
        "at most `budget` token ids from 0 to `self.target.vocab_size - 1`, or [] if it has no draft, such as\n"
        "    return [tokens[-1]] * budget"
    ),
    "logits": (
        "a float tensor [V] with V = `self.target.vocab_size`, such as\n"
        "    return torch.zeros(self.target.vocab_size)"
    ),
    "propose": (
        "a Proposal with at most `request.budget[b]` token ids for each row b, such as\n"
        "    return Proposal.from_rows([[row[-1]] * n for row, n in zip(request.tokens, request.budget)])\n"
        "or, if the tokens are sampled,\n"
        "    while request.wants_more():\n"
        "        drawn = request.sample(logits)  # [B, V] float; returns [B] token ids\n"
        "    return request.proposal()"
    ),
}
"""The return value of the function that drafts."""


def cause_of(failure: BaseException) -> str:
    """Return a text that is equal for failures with the same cause, as far as the kit can tell.

    An exception in the author's file is told by its type and line, one of the core by its message without the
    numbers, and what a check found by what it expected.
    """
    root = root_of(failure)
    frame = author_frame(root)
    if isinstance(root, TimeLimitExceeded):
        return f"no end in {frame.name}, {frame.filename}" if frame else "no end"
    if frame is not None:
        return f"{type(root).__name__} at {frame.filename}:{frame.lineno}"
    if isinstance(root, CheckFailure):
        return _without_numbers(root.cause or f"{root.expected}\n{root.hint or ''}")
    return _without_numbers(str(root) if isinstance(root, PluginError) else f"{type(root).__name__}: {root}")


def root_of(failure: BaseException) -> BaseException:
    """Return the exception that says most: the author's own, or the one with which the core explains it."""
    chain = [failure]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    if author_frame(chain[-1]) is not None:
        return chain[-1]
    explained = [one for one in chain if isinstance(one, PluginError)]
    return (explained or chain)[-1]


def what_failed(error: BaseException) -> str:
    """Return an exception as text: the message where the core says what was wrong, else with the traceback."""
    root = root_of(error)
    if not isinstance(root, PluginError) or author_frame(root) is not None:
        return format_error(error)
    return str(error if isinstance(error, PluginError) else root)


def author_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the deepest frame in the file by which the core called the plugin; None if no such file was left."""
    frames = traceback.extract_tb(error.__traceback__)
    entry = next((frame for frame in frames if not Path(frame.filename).is_relative_to(_CORE)), None)
    if entry is None or isinstance(error, CheckFailure):
        return None
    return [frame for frame in frames if frame.filename == entry.filename][-1]


def _without_numbers(text: str) -> str:
    return re.sub(r"[-+.\d]+", "#", re.sub(r"\[[^]]*\]", "[]", text))


def located(function: Callable[..., Any]) -> str:
    """Return a function's name with the file and line of its definition."""
    function = inspect.unwrap(function)
    name = function.__qualname__.rpartition("<locals>.")[2]
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    file = Path(code.co_filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{name} ({shown}:{code.co_firstlineno})"


def drafting_function(drafter: Drafter, session: DraftSession) -> Callable[..., Any]:
    """Return the function of the author that drafts: `draft`, `logits`, or the session's `propose`."""
    kind: Any = type(drafter)
    if isinstance(drafter, DeterministicDrafter) and kind.open is DeterministicDrafter.open:
        return kind.draft  # type: ignore[no-any-return]
    if isinstance(drafter, AutoregressiveDrafter) and kind.open is AutoregressiveDrafter.open:
        return kind.logits  # type: ignore[no-any-return]
    return type(session).propose


def drafting_advice(drafter: Drafter, session: DraftSession) -> str:
    """Return which function drafts, where it is, and what it must return."""
    function = drafting_function(drafter, session)
    name = getattr(function, "__name__", "propose")
    return f"{located(function)} must return {_MUST_RETURN.get(name, _MUST_RETURN['propose'])}"


def hidden_advice(drafter: Drafter, session: DraftSession) -> str:
    """Return what to do where a drafter reads hidden states of a layer that the request does not have."""
    where, kind = located(drafting_function(drafter, session)), type(drafter).__name__
    named = ", ".join(map(str, drafter.hidden_layers)) or "none"
    return (
        f"`request.hidden_states` has the layers that {kind} names in `hidden_layers` ({named}), and {where} "
        "reads another. Name it, such as\n"
        "    hidden_layers = (LAST_HIDDEN,)\n"
        f"in the class {kind}, and set `needs_hidden_states = True` in its settings."
    )
