"""The thinking part of an answer: the tokens between the marks of a reasoning model, such as `<think>`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""The tokens that open and close a thinking part: of most models, of Mistral's and of Seed's."""

Marks: TypeAlias = tuple[int, int]
"""Token ids of the two marks."""


def thinking_marks(tokenizer: Any) -> Marks | None:
    """Return the marks that are single tokens of a tokenizer; None if it has neither pair, or there is none."""
    if tokenizer is None:
        return None
    vocabulary = tokenizer.get_vocab()
    pairs = ((vocabulary.get(begin), vocabulary.get(end)) for begin, end in MARKS)
    return next(((begin, end) for begin, end in pairs if begin is not None and end is not None), None)


def thinking_span(prompt: Sequence[int], tokens: Sequence[int], marks: Marks) -> tuple[int, int] | None:
    """Return where the first thinking part of an answer begins and ends, its marks included.

    It begins with its mark, or with the answer, where the prompt opens it, as some chat templates do. It ends
    behind its mark, or with the answer, where that was cut off.

    Args:
        prompt: Token ids of the prompt.
        tokens: The new token ids.
        marks: Token ids of the two marks.

    Returns:
        The index of its first token, and the index behind its last; None if the answer does not think.
    """
    opening, closing = marks
    given = [token for token in prompt if token in marks]
    begin = 0 if given[-1:] == [opening] else _index(tokens, opening)
    if begin is None:
        return None
    end = _index(tokens, closing, begin)
    return begin, len(tokens) if end is None else end + 1


def _index(tokens: Sequence[int], token: int, begin: int = 0) -> int | None:
    return next((index for index in range(begin, len(tokens)) if tokens[index] == token), None)
