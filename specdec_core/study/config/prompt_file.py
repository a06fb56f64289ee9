"""Rows checked and turned into prompts, each a text, a chat or token ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from specdec_core.interface.errors import PromptError, shortened
from specdec_core.models.chat_template import Message
from specdec_core.registry.validation_errors import describe
from specdec_core.study.config.prompt_rows import Columns, Row

_TEXTS = ("text", "input_text", "output_text")
"""Types of the parts of a content that are text, in the chat API and the Responses API of OpenAI."""


def _joined(content: Any) -> Any:
    """Return parts joined by line breaks, as vLLM joins them; a text is returned unchanged."""
    if not isinstance(content, list):
        return content
    for number, part in enumerate(content, start=1):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise ValueError(
                f'part {number} must be {{"type": "text", "text": ...}}, since prompts are text; given '
                f"{shortened(repr(part), 60)}"
            )
    return "\n".join(part["text"] for part in content)


class ChatMessage(BaseModel):
    """A message as the chat API of OpenAI has it: a content is a text, or a list of parts; other keys are free."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    tool_calls: Any = None
    reasoning_content: Any = None

    @property
    def said(self) -> str | None:
        """The content; empty beside a thought alone, which templates would else write as None."""
        return self.content if self.tool_calls else self.content or ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.role.strip():
            raise ValueError("'role' is empty")
        if self.tool_calls or self.reasoning_content:
            return self
        if self.content is None or (self.role == "user" and not self.content.strip()):
            raise ValueError(
                "a message needs 'content', a text or a list of text parts, unless it has 'tool_calls' or "
                "'reasoning_content'"
            )
        return self


def turns_of(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Return the messages before each answer of the target, as far as those are not given.

    A user who speaks again, after a user or a tool, has been answered in between.

    Args:
        messages: The messages of a chat.
    """
    turns: list[list[Message]] = [[]]
    for message in messages:
        if message.get("role") == "user" and turns[-1] and turns[-1][-1].get("role") in ("user", "tool"):
            turns.append([])
        turns[-1].append(message)
    return [tuple(turn) for turn in turns]


_MAX_PROBLEMS = 5
# Other keys are allowed, so only near matches of these are reported as misspelled.
_CHECKED = ("prompt", "messages", "reference")
_SIMILAR = 0.87
_PLAIN = (str, int, float, NoneType)


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
        metadata: The other texts and numbers of its row, which drafters are told.
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
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)


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
        if row.problem is not None:
            problems.append(row.where + row.problem)
            continue
        try:
            entry = columns.pick(row)
            if entry is None:
                continue
            prompt = _prompt_of(dict(entry), row.number, columns.group_of(row))
            read, others = {*_Prompt.model_fields, *columns.names.values()}, row.values.items()
            plain = {key: value for key, value in others if key not in read and isinstance(value, _PLAIN)}
            prompt = replace(prompt, metadata=plain)
        except ValidationError as error:
            problems += describe(error, entry, lambda *_, where=row.where: where)
            continue
        except PromptError as error:
            problems.append(f"{row.where}: {error}")
            if row.table:  # the others lack the same column
                break
            continue
        before = ids.setdefault(prompt.id, row.number)
        if before != row.number:
            problems.append(f"{row.where}: the id {prompt.id!r} is that of line {before}, too; it must be unique.")
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


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("this text is empty; write one, or leave it out")
    return value


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


_Text = Annotated[str, AfterValidator(_text)]
_Texts = Annotated[
    list[_Text], Field(min_length=1), BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class _Prompt(BaseModel):
    """A prompt as a row has it. Unrelated keys are allowed."""

    model_config = ConfigDict(strict=True)

    id: Annotated[str | None, Field(min_length=1), BeforeValidator(_number_as_text)] = None
    prompt: _Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    reference: _Texts = []
    source: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, entry: dict[str, Any]) -> dict[str, Any]:
        for key in entry:
            small = key.lower()
            near = [small] if small in cls.model_fields else get_close_matches(small, _CHECKED, 1, _SIMILAR)
            if key not in cls.model_fields and near:
                raise ValueError(f"unknown key {key!r}. Did you mean {near[0]!r}? Unrelated keys are allowed")
        # Beside a text or a chat, token ids are one of the unrelated keys.
        given: list[str] = [key for key in ("prompt", "messages") if key in entry]
        if not given and "tokens" in entry:
            given = ["tokens"]
        if len(given) != 1:
            found = " and ".join(map(repr, given)) or f"the keys {', '.join(entry) or 'none'}"
            raise ValueError(
                "expected a text 'prompt', a list 'messages' or a list of token ids 'tokens', one of them; given "
                f"{found}. If another key holds the prompt, name it with `column`"
            )
        return {key: value for key, value in entry.items() if key != "tokens" or given == ["tokens"]}

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if all(value is None for value in (self.prompt, self.messages, self.tokens)):
            raise ValueError("the prompt is null")
        if self.messages is not None and self.messages[-1].role == "assistant":
            raise ValueError(
                "the last message is the assistant's, and so is the output. End with a message of another role; "
                "to continue a text, use 'prompt'"
            )
        return self


def _prompt_of(entry: dict[str, Any], number: int, group: tuple[str, ...]) -> PromptText:
    """Return the prompt of a row, given its values under specdec's keys.

    Raises:
        ValidationError: It is no prompt.
    """
    found = _Prompt.model_validate(entry)
    messages = None
    if found.messages is not None:
        pairs = zip(entry["messages"], found.messages, strict=True)
        messages = tuple({**given, "content": message.said} for given, message in pairs)
    return PromptText(
        found.id or str(number),
        found.prompt,
        messages,
        tuple(found.reference),
        found.source,
        None if found.tokens is None else tuple(found.tokens),
        group,
    )
