"""The prompt of a row: specdec's keys, Spec-Bench's, named columns, or a template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from specdec_core.interface.errors import PromptError, shortened, unknown_name
from specdec_core.study.config.prompt_rows import Row


@dataclass(frozen=True)
class Columns:
    """The columns to read of each row. With neither, rows have specdec's keys, Spec-Bench's or ShareGPT's.

    Attributes:
        names: Columns by what they hold: `prompt`, `messages`, `reference`, `id` or `source`.
        template: Makes the prompt: a text with columns in braces.
        group: Columns whose values together name the group of a prompt.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    group: Sequence[str] = ()

    def pick(self, row: Row) -> Mapping[str, Any] | None:
        """Return a row's values under specdec's keys; None for a conversation of ShareGPT in which no user speaks.

        Raises:
            PromptError: The row lacks a column, or its prompt is not a text.
        """
        picked = self._picked(row)
        talk = picked.get("messages")
        if not isinstance(talk, list) or not all(isinstance(one, Mapping) and "value" in one for one in talk):
            return picked
        if not talk and "conversations" not in row.values:
            return picked
        messages = _asked(talk)
        return {**picked, "messages": messages} if messages else None

    def _picked(self, row: Row) -> Mapping[str, Any]:
        if not self.names and self.template is None:
            return _own_keys(row)
        picked = {key: _value(row, column) for key, column in self.names.items()}
        if self.template is not None:
            picked["prompt"] = _filled(self.template, row)
        elif "prompt" in picked:
            picked |= _said(picked.pop("prompt"), self.names["prompt"])
        return picked

    def group_of(self, row: Row) -> tuple[str, ...]:
        """Return the values of a row that name its group: one for each column of `group`.

        Raises:
            PromptError: The row lacks a column, or its value is not a text, a number or null.
        """
        return tuple(group_name(_value(row, column), column) for column in self.group)


NO_VALUE = "(none)"
"""The group of prompts whose value is null or an empty text."""


def group_name(value: Any, column: str) -> str:
    """Return a value as the name of a group.

    Raises:
        PromptError: It is not a text, a number or null.
    """
    if value is None or value == "":
        return NO_VALUE
    if not isinstance(value, (str, int, float)):
        raise PromptError(
            f"column {column!r} groups the prompts, so it must hold a text or a number; given {_given(value)}."
        )
    return str(value)


def check_template(template: str) -> str:
    """Return a template.

    Raises:
        ValueError: It is not a text with the names of columns in braces.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write a brace that is not a column as two: {{{{ or }}}}") from error
    names = [name for _, name, _, _ in parts if name is not None]
    # A format or a conversion would be code of a kind, and so would attributes.
    if not names or any(not name or form or conversion for _, name, form, conversion in parts if name is not None):
        raise ValueError("write columns in braces, such as 'Question: {question}'; nothing else may be in them")
    return template


def _filled(template: str, row: Row) -> str:
    pieces = []
    for literal, column, _, _ in Formatter().parse(template):
        pieces.append(literal)
        if column is not None:
            value = _value(row, column)
            pieces.append(str(value) if isinstance(value, (int, float)) else _text(value, column))
    return "".join(pieces)


def _value(row: Row, column: str) -> Any:
    """Return the value of a column; a dot in its name reaches into objects and lists."""
    if column in row.values:
        return row.values[column]
    node: Any = row.values
    before = ""
    for part in column.split("."):
        inside = _inside(node)
        if part not in inside:
            names = [before + key for key in inside] or row.values
            raise PromptError(unknown_name("column", column, names))
        node = inside[part]
        before += f"{part}."
    return node


def _inside(node: Any) -> Mapping[str, Any]:
    """Return the parts of an object or a list by the names that they have in a column's."""
    if isinstance(node, list):
        return {str(index): value for index, value in enumerate(node)}
    return node if isinstance(node, Mapping) else {}


def _text(value: Any, column: str) -> str:
    """Return a text, or the first of several: the first turn of a dialogue."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, str):
        raise PromptError(f"column {column!r} must hold a text; given {_given(value)}.")
    return first


def _said(value: Any, column: str) -> dict[str, Any]:
    """Return a text as a prompt, and several as the turns of a user."""
    if not isinstance(value, list):
        return {"prompt": _text(value, column)}
    if not value or not all(isinstance(text, str) for text in value):
        wrong = next((text for text in value if not isinstance(text, str)), value)
        raise PromptError(f"column {column!r} must hold texts, the turns of a user; given {_given(wrong)}.")
    return {"messages": [{"role": "user", "content": text} for text in value]}


def _given(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str), 60)


_QUESTION = {"said": "turns", "id": "question_id", "source": "category"}
"""Keys of a question of SPEED-Bench, Spec-Bench or MT-Bench."""
_HUB_QUESTION = {"said": "prompt", "id": "prompt_id", "source": "category"}
"""Keys of a question of MT-Bench as it is on the hub."""
_SPEAKERS = {"human": "user", "user": "user", "system": "system"}
"""Roles of those who speak to the model in ShareGPT."""
_MODELS = ("gpt", "chatgpt", "bing", "bard", "assistant")
"""Names of the model in ShareGPT."""


def _asked(talk: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is said to the model in a conversation of ShareGPT; empty if no user speaks.

    Raises:
        PromptError: Someone else speaks, such as a tool.
    """
    said = []
    for one in talk:
        speaker = str(one.get("from"))
        if speaker in _SPEAKERS and str(one["value"]).strip():
            said.append({"role": _SPEAKERS[speaker], "content": one["value"]})
        elif speaker not in _SPEAKERS and speaker not in _MODELS:
            raise PromptError(unknown_name("speaker", speaker, (*_SPEAKERS, *_MODELS)))
    return said if any(message["role"] == "user" for message in said) else []


def _own_keys(row: Row) -> Mapping[str, Any]:
    """Return a row with specdec's keys as it is, and a question of a benchmark as the turns of a user.

    Its references are those of all turns.
    """
    values = row.values
    if isinstance(values.get("prompt"), list):
        question = _HUB_QUESTION
    elif {"prompt", "messages"} & set(values):
        return values
    elif "turns" in values:
        question = _QUESTION
    elif "conversations" in values:
        return {"messages": values["conversations"], "source": values.get("id")}
    elif row.table:
        columns = ", ".join(map(repr, values))
        raise PromptError(
            f"the rows have no column 'prompt'. Name the one that holds it with `column`: {columns}."
        )
    else:
        return values
    picked = {key: values[name] for key, name in question.items() if name in values}
    turns = picked.pop("said")
    return {**picked, **_said(turns if isinstance(turns, list) else [turns], question["said"])}
