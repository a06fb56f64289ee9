"""A file of prompts: JSON, one object a line, each a text or a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_core.errors import PromptError, reading

if TYPE_CHECKING:
    from pathlib import Path

Message: TypeAlias = Mapping[str, Any]
"""What one of a dialogue says: `role` and `content`, both texts, and whatever else a chat template reads."""

_MOST_PROBLEMS = 5
_KNOWN = ("prompt", "messages", "id", "reference", "source")
# Other keys are free, so only what can hardly be another word is taken for one of these.
_EASILY_MISSPELT = ("prompt", "messages", "reference")
_ALIKE = 0.87


@dataclass(frozen=True)
class PromptText:
    """A prompt: either a text or a chat.

    Attributes:
        id: What results call it.
        text: The text to go on from; for encoder-decoder models the source. None where there are messages.
        messages: What was said so far; None where there is a text.
        references: Good answers, for scores of quality; empty when none are known.
        source: Where it comes from. Shown, and not used.
    """

    id: str
    text: str | None
    messages: tuple[Message, ...] | None = None
    references: tuple[str, ...] = ()
    source: str | None = None


def read_prompt_file(path: Path, limit: int | None = None) -> list[PromptText]:
    """Return the prompts of a file, none of them empty, no two with one id.

    Args:
        path: The file. Blank lines are passed over; a prompt without an id is called by the number of its line.
        limit: Read only the first so many.

    Raises:
        PromptError: It cannot be read, or its lines are no prompts: with a line for each of the first problems,
            which begins with file and line. Also when only some prompts have a reference.
    """
    found: dict[int, PromptText] = {}
    problems: list[str] = []
    ids: dict[str, int] = {}
    # A byte order mark, as some editors write it, is no part of the first line.
    with reading(path, PromptError, "JSON, one object a line"), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if (limit is not None and len(found) >= limit) or len(problems) >= _MOST_PROBLEMS:
                break
            if not line.strip():
                continue
            entry = _Line(line, number)
            prompt = entry.prompt()
            before = ids.setdefault(prompt.id, number)
            if before != number:
                entry.problem(f"the id {prompt.id!r} is that of line {before} too; give each an id of its own.")
            problems += [f"{path}:{number}{problem}" for problem in entry.problems]
            found[number] = prompt
    if not problems:
        problems += _partly_referenced(path, found)
    if problems:
        raise PromptError("\n".join(problems))
    return list(found.values())


def _partly_referenced(path: Path, found: Mapping[int, PromptText]) -> Iterator[str]:
    without = [number for number, prompt in found.items() if not prompt.references]
    if without and len(without) < len(found):
        shown = ", ".join(map(str, without[:_MOST_PROBLEMS])) + (", ..." if len(without) > _MOST_PROBLEMS else "")
        lines = f"line {shown} has" if len(without) == 1 else f"lines {shown} have"
        yield (
            f"{path}:{without[0]}: {len(found) - len(without)} of {len(found)} prompts have a reference; {lines} "
            "none. Give one to each or to none: a score over some of them would be no score of the run."
        )


class _Line:
    """A line of a prompt file while it is read, with what is wrong with it."""

    def __init__(self, line: str, number: int) -> None:
        self.problems: list[str] = []
        self._number = number
        self._entry = self._object(line)

    def problem(self, text: str) -> None:
        """Note a problem; `path:line` is put before it."""
        self.problems.append(f": {text}")

    def prompt(self) -> PromptText:
        """Return the prompt, of which only the id can be relied on where there are problems."""
        own_id = self._id()
        if self.problems:
            return PromptText(own_id, "")
        meant = self._misspelt()
        text, messages = self._text(meant), self._messages()
        source = self._entry.get("source")
        if not isinstance(source, str | None):
            self.problem(f'"source" must be a text; this is {_kind(source)}.')
        return PromptText(own_id, text, messages, self._references(), source)

    def _object(self, line: str) -> dict[str, Any]:
        try:
            entry = json.loads(line.rstrip())  # else what is missing at its end is found behind it
            json.dumps(entry, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            self.problems.append(f":{error.colno}: this is no JSON: {error.msg}; expected one object a line.")
        except UnicodeEncodeError:
            self.problem("this holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.")
        except (ValueError, RecursionError) as error:
            self.problem(f"this cannot be read as JSON: {error}.")
        else:
            if isinstance(entry, dict):
                return entry
            self.problem(
                f'expected an object with a text under "prompt", or a chat under "messages"; this has: '
                f"{type(entry).__name__}."
            )
        return {}

    def _id(self) -> str:
        given = self._entry.get("id", self._number)
        if isinstance(given, bool) or not isinstance(given, str | int | float) or given == "":
            self.problem(f'"id" must be a text or a number; this is {_kind(given)}.')
            return str(self._number)
        return str(given)

    def _misspelt(self) -> set[str]:
        """Note keys that are nearly those there are; return what they were meant to be."""
        meant = set()
        for key in self._entry:
            small = key.lower()
            near = [small] if small in _KNOWN else get_close_matches(small, _EASILY_MISSPELT, 1, _ALIKE)
            if key not in _KNOWN and near:
                self.problem(f"unknown key {key!r}. Did you mean {near[0]!r}? Keys less like it are free.")
                meant.add(near[0])
        return meant

    def _text(self, meant: set[str]) -> str | None:
        if "messages" in self._entry:
            if "prompt" in self._entry:
                self.problem('"prompt" and "messages" are both given; a prompt is either a text or a chat.')
            return None
        text = self._entry.get("prompt")
        if not isinstance(text, str):
            if not meant & {"prompt", "messages"}:
                self.problem(
                    f'expected an object with a text under "prompt", or a chat under "messages"; this has: '
                    f"{self._said('prompt')}."
                )
        elif not text.strip():
            self.problem(f"prompt {self._number} is empty; write a text or leave the line out.")
        return text

    def _said(self, key: str) -> str:
        if key in self._entry:
            return f"{_kind(self._entry[key])} under {key!r}"
        return f"keys {', '.join(self._entry)}" if self._entry else "no keys"

    def _messages(self) -> tuple[Message, ...] | None:
        messages = self._entry.get("messages")
        if "messages" not in self._entry:
            return None
        if not isinstance(messages, list) or not messages:
            self.problem(f'"messages" must be a list of at least one message; this is {_kind(messages)}.')
            return None
        before = len(self.problems)
        for place, message in enumerate(messages, start=1):
            self._check_message(f"message {place}", message)
        if len(self.problems) == before and messages[-1]["role"] == "assistant":
            self.problem(
                "the last message is the assistant's, and the answer would be the assistant's too. Let a user "
                "speak last; a text that shall be continued is a `prompt`."
            )
        return tuple(messages)

    def _check_message(self, name: str, message: Any) -> None:
        if not isinstance(message, dict):
            self.problem(f'{name} must be an object with "role" and "content"; this is {_kind(message)}.')
            return
        for key in ("role", "content"):
            value = message.get(key)
            if key not in message:
                self.problem(f"{name} has no {key!r}; it has: {', '.join(message) or 'no keys'}.")
            elif not isinstance(value, str) or not value.strip():
                self.problem(f'"{key}" of {name} must be a text that is not empty; this is {_kind(value)}.')

    def _references(self) -> tuple[str, ...]:
        given = self._entry.get("reference", ())
        references = [given] if isinstance(given, str) else given
        absent = "reference" not in self._entry
        texts = isinstance(references, list) and all(isinstance(one, str) and one.strip() for one in references)
        if absent or (texts and references):
            return tuple(references)
        self.problem(
            f'"reference" must be a text or a list of texts, none of them empty; this is {_kind(given)}. '
            "Leave it out where there is none."
        )
        return ()


def _kind(value: Any) -> str:
    """Say in words what a JSON value is."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "a text" if value.strip() else "an empty text"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return {bool: "true or false", dict: "an object"}.get(type(value), "a number")
