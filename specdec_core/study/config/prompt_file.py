"""Rows checked and turned into prompts, each a text, a chat or token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from specdec_core.interface.errors import PromptError
from specdec_core.models.chat_template import Message
from specdec_core.study.config.messages import message_problems, plain_messages
from specdec_core.study.config.prompt_columns import Columns
from specdec_core.study.config.prompt_rows import Row, kind_of

_MAX_PROBLEMS = 5
_KNOWN = ("prompt", "messages", "tokens", "id", "reference", "source")
# Other keys are allowed, so only near matches of these are reported as misspelled.
_CHECKED_KEYS = ("prompt", "messages", "reference")
_MIN_SIMILARITY = 0.87


@dataclass(frozen=True)
class PromptText:
    """A prompt: a text, a chat or token ids; the other two are None.

    Attributes:
        id: Identifies it in results.
        text: The text to continue; for encoder-decoder models the source.
        messages: The messages of a chat.
        references: Reference outputs for quality scores, if there are any.
        source: Where it comes from; only shown.
        tokens: Ids of the target's tokens, to which nothing is added.
        group: The values of the columns that group the prompts; empty without them.
        turn: Number of the turn. Later turns of a conversation follow the one before, and have the messages after
            the target's answer to it.
    """

    id: str
    text: str | None
    messages: tuple[Message, ...] | None = None
    references: tuple[str, ...] = ()
    source: str | None = None
    tokens: tuple[int, ...] | None = None
    group: tuple[str, ...] = ()
    turn: int = 1


def conversations(prompts: Sequence[PromptText]) -> list[range]:
    """Return the indices of the turns of each conversation; a prompt that nothing follows is one of them."""
    starts = [index for index, prompt in enumerate(prompts) if prompt.turn == 1]
    return [range(start, end) for start, end in pairwise([*starts, len(prompts)])]


def read_rows(rows: Iterable[Row], columns: Columns, limit: int | None = None) -> list[PromptText]:
    """Return the prompts of some rows, none of them empty, with unique ids.

    Args:
        rows: The rows; the id of a prompt defaults to its row's number.
        columns: What to read of each row.
        limit: Read at most this many.

    Raises:
        PromptError: If rows are invalid, with one line for each of the first problems, beginning with the row's
            location; or if only some prompts have a reference.
    """
    found: list[tuple[Row, PromptText]] = []
    problems: list[str] = []
    ids: dict[str, int] = {}
    for row in rows:
        if (limit is not None and len(found) >= limit) or len(problems) >= _MAX_PROBLEMS:
            break
        try:
            entry = _Entry(row, columns)
        except PromptError as error:
            problems.append(f"{row.where}: {error}")
            if row.table:  # the others lack the same column
                break
            continue
        prompt = entry.prompt()
        before = ids.setdefault(prompt.id, row.number)
        if before != row.number:
            entry.problem(f"duplicate id {prompt.id!r}, also used in line {before}; ids must be unique.")
        problems += [f"{row.where}{problem}" for problem in entry.problems]
        found.append((row, prompt))
    if not problems:
        problems += _partly_referenced(found)
    if problems:
        raise PromptError("\n".join(problems))
    return [prompt for _, prompt in found]


def _partly_referenced(found: Sequence[tuple[Row, PromptText]]) -> Iterator[str]:
    without = [row for row, prompt in found if not prompt.references]
    if without and len(without) < len(found):
        shown = ", ".join(str(row.number) for row in without[:_MAX_PROBLEMS])
        shown += ", ..." if len(without) > _MAX_PROBLEMS else ""
        lines = f"line {shown} has" if len(without) == 1 else f"lines {shown} have"
        yield (
            f"{without[0].where}: {len(found) - len(without)} of {len(found)} prompts have a reference; {lines} "
            "none. Add one to each or to none: a score over some prompts would not describe the run."
        )


class _Entry:
    """Turns a row into a prompt and collects its problems.

    Raises:
        PromptError: The row lacks a column.
    """

    def __init__(self, row: Row, columns: Columns) -> None:
        self.problems = [] if row.problem is None else [row.problem]
        self._number = row.number
        self._entry = {} if self.problems else dict(columns.pick(row))
        self._group = () if self.problems else columns.group_of(row)

    def problem(self, text: str) -> None:
        """Record a problem; the caller prefixes the location."""
        self.problems.append(f": {text}")

    def prompt(self) -> PromptText:
        """Return the prompt; if there are problems, only its id is valid."""
        own_id = self._id()
        if self.problems:
            return PromptText(own_id, "")
        meant = self._misspelled()
        text, messages = self._text(meant), self._messages()
        source = self._entry.get("source")
        if not isinstance(source, str | None):
            self.problem(f'"source" must be a string; given {kind_of(source)}.')
        return PromptText(own_id, text, messages, self._references(), source, self._tokens(), self._group)

    def _id(self) -> str:
        given = self._entry.get("id", self._number)
        if isinstance(given, bool) or not isinstance(given, str | int | float) or given == "":
            self.problem(f'"id" must be a string or a number; given {kind_of(given)}.')
            return str(self._number)
        return str(given)

    def _misspelled(self) -> set[str]:
        """Report misspelled keys; return the keys that they probably stand for."""
        meant = set()
        for key in self._entry:
            small = key.lower()
            near = [small] if small in _KNOWN else get_close_matches(small, _CHECKED_KEYS, 1, _MIN_SIMILARITY)
            if key not in _KNOWN and near:
                self.problem(f"unknown key {key!r}. Did you mean {near[0]!r}? Unrelated keys are allowed.")
                meant.add(near[0])
        return meant

    def _text(self, meant: set[str]) -> str | None:
        if "messages" in self._entry:
            if "prompt" in self._entry:
                self.problem('"prompt" and "messages" are both given; use one of them.')
            return None
        if self._holds_tokens:
            return None
        text = self._entry.get("prompt")
        if not isinstance(text, str):
            if not meant & {"prompt", "messages"}:
                self.problem(
                    'expected an object with a string "prompt" or a list "messages" or "tokens"; given '
                    f"{self._given()}. If another key holds the prompt, name it with `column`."
                )
        elif not text.strip():
            self.problem(f"prompt {self._number} is empty; write a text or remove the line.")
        return text

    @property
    def _holds_tokens(self) -> bool:
        """Whether the prompt is token ids. Beside a text or a chat, the key is one of the unrelated ones."""
        return "tokens" in self._entry and not {"prompt", "messages"} & set(self._entry)

    def _tokens(self) -> tuple[int, ...] | None:
        if not self._holds_tokens:
            return None
        tokens = self._entry["tokens"]
        ids = tokens if isinstance(tokens, list) else []
        wrong = [one for one in ids if not isinstance(one, int) or isinstance(one, bool) or one < 0]
        if not ids or wrong:
            given = kind_of(tokens) if not wrong else repr(wrong[0])
            self.problem(f'"tokens" must be a list of token ids, which are integers of at least 0; given {given}.')
            return None
        return tuple(ids)

    def _given(self) -> str:
        if "prompt" in self._entry:
            return f"{kind_of(self._entry['prompt'])} as 'prompt'"
        return f"the keys {', '.join(self._entry)}" if self._entry else "no keys"

    def _messages(self) -> tuple[Message, ...] | None:
        messages = self._entry.get("messages")
        if "messages" not in self._entry:
            return None
        if not isinstance(messages, list) or not messages:
            self.problem(f'"messages" must be a list of at least one message; given {kind_of(messages)}.')
            return None
        problems = [
            problem
            for number, message in enumerate(messages, start=1)
            for problem in message_problems(message, f"message {number}")
        ]
        if not problems and messages[-1]["role"] == "assistant":
            problems.append(
                "the last message is the assistant's, and so is the output. End with a message of another role; "
                "to continue a text, use `prompt`."
            )
        for problem in problems:
            self.problem(problem)
        return None if problems else plain_messages(messages)

    def _references(self) -> tuple[str, ...]:
        given = self._entry.get("reference", ())
        references = [given] if isinstance(given, str) else given
        absent = "reference" not in self._entry
        texts = isinstance(references, list) and all(isinstance(one, str) and one.strip() for one in references)
        if absent or (texts and references):
            return tuple(references)
        self.problem(
            f'"reference" must be a non-empty string or a list of them; given {kind_of(given)}. '
            "Omit the key if there is none."
        )
        return ()
