"""Chat templates: the token ids of a chat. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specdec_core.interface.errors import PromptError

Message: TypeAlias = Mapping[str, Any]
"""A chat message: `role` and `content`, and anything else that a chat template reads.

Both are strings; the content is None in a message that consists of `tool_calls`.
"""


@dataclass(frozen=True)
class Turn:
    """The messages of a conversation that its next answer follows.

    Attributes:
        messages: The messages after the last answer; in the first turn, from the beginning.
        name: The turn's name in messages of errors.
        template: A Jinja chat template that replaces the tokenizer's.
    """

    messages: tuple[Message, ...]
    name: str
    template: str | None = None


def render_chat(
    messages: Sequence[Message], tokenizer: Any, *, name: str, model: str, template: str | None = None
) -> list[int]:
    """Return the token ids of a chat, with a generation prompt after the last message.

    The template writes the special tokens; the tokenizer adds none.

    Args:
        messages: The messages, each content a text.
        tokenizer: The target's tokenizer, or None.
        name: Name of the chat in messages of errors.
        model: Name of the target in messages of errors.
        template: A Jinja template that replaces the tokenizer's own.

    Raises:
        PromptError: There is no tokenizer or no template, or the template raises an error or leaves out a message.
    """
    if tokenizer is None:
        raise PromptError(
            f"{name} is a chat, but {model} has no tokenizer: add the tokenizer files to the model folder."
        )
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            f"{name} is a chat, but the tokenizer of {model} has no chat template. Use an instruction-tuned "
            "checkpoint, whose tokenizer has one, or provide a template: `chat_template: FILE` in `prompts`, "
            "--chat-template FILE on the command line, or `template` of `Decoder.chat`."
        )
    whose = f"the chat template of {model}" if template is None else "the given chat template"
    calls = [number for number, message in enumerate(messages, start=1) if message.get("content") is None]
    if calls and "tool_calls" not in str(tokenizer.chat_template if template is None else template):
        raise PromptError(
            f"{name}: message {calls[0]} has no content, and {whose} writes no tool_calls. Remove the message, "
            "give it a content, or provide another template."
        )

    def render(said: Sequence[Message]) -> str:
        chat = [dict(message) for message in said]
        return str(
            tokenizer.apply_chat_template(chat, chat_template=template, add_generation_prompt=True, tokenize=False)
        )

    try:
        text = render(_as_read(messages, render, f"{name}: {whose}"))
    except PromptError:
        raise
    except Exception as error:  # a template is a program and may raise anything
        line = getattr(error, "lineno", None)
        index = "" if line is None else f" (line {line} of the template)"
        raise PromptError(
            f"{name}: {whose} raised an error: {error}{index}. Change the messages to what the template accepts, "
            "or provide another template."
        ) from error
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # the template writes them
    if not ids:
        raise PromptError(f"{name}: {whose} renders it as an empty text; it must render the messages.")
    return [int(token) for token in ids]


def _as_read(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str], whose: str
) -> Sequence[Message]:
    """Return messages in the form that a template reads: each content as a text, or as a list of one text part.

    Templates of models that also read images may expect parts, and leave out a content that is a text.

    Args:
        messages: The messages, each content a text.
        render: Applies the template.
        whose: The beginning of the error message.

    Raises:
        PromptError: The template leaves out a message in either form.
    """
    unread = _left_out(messages, (), render)
    parts = range(len(messages)) if unread is None else unread
    if not parts or _left_out(messages, parts, render) == []:
        return _in_parts(messages, parts)
    if unread:
        raise PromptError(
            f"{whose} leaves out message {unread[0] + 1}, whose role is {messages[unread[0]].get('role')!r}. "
            "Remove the message, or provide another template."
        )
    return messages  # rendering them raises what is wrong


def _left_out(
    messages: Sequence[Message], parts: Collection[int], render: Callable[[Sequence[Message]], str]
) -> list[int] | None:
    """Return the indices of the messages that a template leaves out; None if it raises an error.

    Templates may change a text, such as by trimming it, so that a number in its place is looked for.
    """
    marks = [f"9{n:04}8" if (m.get("content") or "").strip() else "" for n, m in enumerate(messages)]
    marked = [{**m, "content": mark} if mark else m for m, mark in zip(messages, marks, strict=True)]
    try:
        text = render(_in_parts(marked, parts))
    except Exception:  # a template is a program and may raise anything
        return None
    return [index for index, mark in enumerate(marks) if mark not in text]


def _in_parts(messages: Sequence[Message], parts: Collection[int]) -> list[Message]:
    """Return messages, some of them with a list of one text part as their content."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}] if m.get("content") else []} if n in parts else m
        for n, m in enumerate(messages)
    ]
