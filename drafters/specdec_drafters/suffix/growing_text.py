"""The tokens of a request, and where its end occurred before."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from specdec_drafters.common.retrieval import MAX_OCCURRENCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class GrowingText:
    """The tokens of one sequence, and the longest match of its end with what came before.

    A match is found by comparing with each position, which takes about a microsecond per thousand tokens.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._tokens = array("i")

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self._tokens[length:]

    def match(self, tokens: Sequence[int], shortest: int = 1) -> tuple[int, NDArray[np.int64]]:  # noqa: ARG002
        """Read `tokens`, the whole sequence; return the longest match as `TokenIndex` does, the latest first."""
        self._tokens.extend(tokens[len(self._tokens) :])
        if not self._tokens:
            return 0, np.empty(0, dtype=np.int64)
        text = np.frombuffer(self._tokens, dtype=np.int32)
        found = ends = np.flatnonzero(text[:-1] == text[-1])[::-1] + 1
        size = 0
        while len(ends) and size < self._longest:
            found, size = ends, size + 1
            ends = ends[ends > size]
            ends = ends[text[ends - size - 1] == text[-size - 1]]
        return size, found[:MAX_OCCURRENCES]

    def following(self, positions: NDArray[np.int64], width: int) -> NDArray[np.int32]:
        """Return the tokens from each position on, `[N, width]`; where the text ends, they repeat themselves."""
        text = np.frombuffer(self._tokens, dtype=np.int32)
        return text[positions[:, None] + np.arange(width) % (len(text) - positions)[:, None]]
