"""Prompt lookup, for engines over whose passes the benchmark drafts and verifies by itself."""

from collections.abc import Sequence


def copied(text: Sequence[int], length: int, ngram: int) -> list[int]:
    """Return up to `length` tokens that followed the longest, most recent match of the last `ngram` or fewer."""
    for size in range(min(ngram, len(text) - 1), 0, -1):
        last = list(text[-size:])
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == last:
                return list(text[start + size : start + size + length])
    return []
