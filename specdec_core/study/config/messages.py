"""Messages of a chat, with each content as one text, as chat templates of text models read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.interface.errors import PromptError, shortened
from specdec_core.models.chat_template import Message
from specdec_core.study.config.prompt_rows import kind_of

_TEXTS = ("text", "input_text", "output_text")
"""Types of the parts of a content that are text, in the chat API and the Responses API of OpenAI."""


def plain_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages in which contents in parts are joined by line breaks, as vLLM joins them.

    Args:
        messages: As the chat API of OpenAI has them: a content is a string or a list of parts, and may be null or
            absent beside `tool_calls`.

    Raises:
        PromptError: A part is not a text.
    """
    return tuple(_plain(message, f"message {number}") for number, message in enumerate(messages, start=1))


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


def message_problems(message: Any, name: str) -> list[str]:
    """Return what is wrong with a message of `plain_messages`, or would leave it without text.

    Args:
        message: What should be a message.
        name: Its name in problems.
    """
    if not isinstance(message, dict):
        return [f'{name} must be an object with "role" and "content"; given {kind_of(message)}.']
    try:
        message = _plain(message, name)
    except PromptError as error:
        return [str(error)]
    problems = []
    for key in ("role", "content"):
        value = message.get(key)
        if key not in message:
            problems.append(f"{name} has no {key!r}; it has: {', '.join(message) or 'no keys'}.")
        elif key == "content" and not value and message.get("tool_calls"):
            continue
        elif not isinstance(value, str) or not value.strip():
            allowed = " or a list of text parts; null beside tool_calls" if key == "content" else ""
            problems.append(f'"{key}" of {name} must be a non-empty string{allowed}; given {kind_of(value)}.')
    return problems


def _plain(message: Message, name: str) -> Message:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return {**message, "content": None}
    if not isinstance(content, list) or not content:
        return message
    texts = [_text(part, f'part {number} of "content" of {name}') for number, part in enumerate(content, start=1)]
    return {**message, "content": "\n".join(texts)}


def _text(part: Any, name: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    if kind in _TEXTS:
        given = f'a {kind!r} part without a string "text"'
    elif kind is not None:
        given = f"{shortened(repr(kind), 40)}: prompts are text, so remove the part, or describe it in words"
    else:
        given = kind_of(part)
    raise PromptError(f'{name} must be {{"type": "text", "text": ...}}; given {given}.')
