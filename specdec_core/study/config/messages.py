"""Messages of a chat, with each content as one text, as chat templates of text models read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from specdec_core.interface.errors import shortened
from specdec_core.models.chat_template import Message

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
    def _check(self) -> ChatMessage:
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
