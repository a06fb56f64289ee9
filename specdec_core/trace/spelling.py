"""How a trace spells tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def speller(tokenizer: Any) -> Callable[[int], str]:
    """Return a function from a token to its text within a sequence.

    SentencePiece stores the space before a word in the word's first token, and drops it when that token is decoded
    alone; the function adds it. A token without text, such as the end of a sequence, is shown by its name.

    Args:
        tokenizer: The target's tokenizer; None shows token ids.
    """

    def spell(token: int) -> str:
        if tokenizer is None:
            return f" {token}"
        text: str = tokenizer.decode([token], skip_special_tokens=True)
        name = str(tokenizer.convert_ids_to_tokens(token))
        if name.startswith("▁") and not text.startswith(" "):
            return f" {text}"
        return text or name

    return spell


def shown(text: str) -> str:
    """Return the text of a token with its line breaks and tabs as symbols."""
    return text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
