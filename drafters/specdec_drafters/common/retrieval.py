"""Retrieval: finds where the end of a sequence occurred before, and drafts its most frequent continuation."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import DraftRequest, DraftSession, Proposal
from specdec_drafters.settings import MatchingConfig

_END = 0xFFFF_FFFF  # ends a text in an index; as int32 it is -1, which is not a token id
_END_BYTES = b"\xff\xff\xff\xff"
_BYTES = 4
MAX_OCCURRENCES = 1000
"""The most occurrences of a match that are looked at; of more, evenly chosen ones."""


class TokenIndex:
    """Texts in a suffix array, which finds their longest match with a sequence in logarithmic time. Immutable.

    A token takes at most 8 bytes: 4 for its id, and up to 4 for its position in the array.

    Args:
        tokens: `[T]` uint32, the token ids of all texts, each with `_END` after it.
        texts: The number of texts. No match crosses the end of a text.
        longest: The longest match.
    """

    def __init__(self, tokens: NDArray[np.uint32], texts: int, longest: int) -> None:
        self.texts = texts
        self._longest = longest
        self._bytes = tokens.astype(">u4").tobytes()  # in this order, bytes compare like token ids
        self._tokens = np.frombuffer(self._bytes, dtype=">u4")
        self._positions = _suffix_array(self._tokens, longest + 1)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int] | NDArray[np.int32]], longest: int) -> Self:
        """Return the index of some texts, each a sequence of token ids."""
        ended = [np.append(np.asarray(text, dtype=np.uint32), np.uint32(_END)) for text in texts]
        return cls(np.concatenate(ended), len(texts), longest)

    def merged(self, other: "TokenIndex") -> "TokenIndex":
        """Return the index of the texts of both."""
        return TokenIndex(np.concatenate([self._tokens, other._tokens]), self.texts + other.texts, self._longest)

    def match(self, tokens: Sequence[int], shortest: int = 1) -> tuple[int, NDArray[np.int64]]:
        """Find the longest suffix of a sequence that a token follows here.

        Args:
            tokens: The sequence.
            shortest: The shortest match. Where there is none, the search ends at once.

        Returns:
            Its length, 0 if there is none, and the positions `[N]` of the tokens that follow it.
        """
        suffix = np.array(tokens[-self._longest :], dtype=">u4").tobytes()
        sizes = range(shortest, len(suffix) // _BYTES + 1)
        if not sizes or self._first(suffix, shortest) < 0:
            return 0, np.empty(0, dtype=np.int64)
        size = shortest + bisect_left(sizes[1:], True, key=lambda size: self._first(suffix, size) < 0)
        first, pattern = self._first(suffix, size), suffix[-_BYTES * size :]
        # No token id is as large as `_END`, so what ends after the pattern comes after what goes on.
        last = bisect_left(self._positions, pattern + _END_BYTES, lo=first, key=self._beginning(size + 1))
        step = -(-(last - first) // MAX_OCCURRENCES)
        return size, np.array(self._positions[first:last:step], dtype=np.int64) + size

    def _first(self, suffix: bytes, size: int) -> int:
        """Return the first row of the suffix array with the last `size` tokens and another one, or -1."""
        pattern, beginning = suffix[-_BYTES * size :], self._beginning(size + 1)
        first = bisect_left(self._positions, pattern, key=beginning)
        found = beginning(self._positions[first]) if first < len(self._positions) else b""
        return first if found.startswith(pattern) and found < pattern + _END_BYTES else -1

    def _beginning(self, size: int) -> Callable[[int], bytes]:
        text, width = self._bytes, _BYTES * size
        return lambda position: text[_BYTES * position : _BYTES * position + width]

    def following(self, positions: NDArray[np.int64], width: int) -> NDArray[np.int32]:
        """Return the tokens from each position on, `[N, width]`; -1 after the last one of a text."""
        indices = positions[:, None] + np.arange(width)
        found: NDArray[np.uint32] = self._tokens[np.minimum(indices, len(self._tokens) - 1)]
        return found.astype(np.int32)


class GrowingText:
    """The tokens of one sequence, and where the end of a sequence occurs in it.

    An occurrence is found by comparing with each position, which takes about a microsecond per thousand tokens.

    Args:
        tokens: The tokens so far.
        longest: The longest match of `match`.
    """

    def __init__(self, tokens: Sequence[int] = (), longest: int = 1) -> None:
        self._longest = longest
        self._tokens = array("i", tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Read the part of `tokens`, the whole sequence, that was not read yet."""
        self._tokens.extend(tokens[len(self._tokens) :])

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self._tokens[length:]

    def occurrences(self, end: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return the positions `[N]` after the occurrences of the last 1, 2, ... tokens of `end`, latest first.

        An occurrence counts if a token follows it. The last of the arrays is of the longest match.
        """
        if not end or not self._tokens:
            return []
        text = np.frombuffer(self._tokens, dtype=np.int32)
        ends = np.flatnonzero(text[:-1] == end[-1])[::-1] + 1
        found = []
        while len(ends):
            found.append(ends)
            size = len(found)
            if size == len(end):
                break
            ends = ends[ends > size]
            ends = ends[text[ends - size - 1] == end[-size - 1]]
        return found

    def match(self, tokens: Sequence[int], shortest: int = 1) -> tuple[int, NDArray[np.int64]]:  # noqa: ARG002
        """Read `tokens`, the whole sequence; return the longest match as `TokenIndex` does, the latest first."""
        self.read(tokens)
        found = self.occurrences(tokens[-self._longest :])
        return (len(found), found[-1][:MAX_OCCURRENCES]) if found else (0, np.empty(0, dtype=np.int64))

    def following(self, positions: NDArray[np.int64], width: int) -> NDArray[np.int32]:
        """Return the tokens from each position on, `[N, width]`; where the text ends, they repeat themselves."""
        text = np.frombuffer(self._tokens, dtype=np.int32)
        return text[positions[:, None] + np.arange(width) % (len(text) - positions)[:, None]]

    def copy(self, position: int, count: int, *, endless: bool) -> list[int]:
        """Return `count` tokens from a position on; where the text ends, fewer, or the same again if `endless`."""
        copied = self._tokens[position : position + count].tolist()
        period = len(copied)
        while endless and len(copied) < count:
            copied.append(copied[-period])
        return copied


class Searched(Protocol):
    """Text that a session searches: a `TokenIndex`, or an object with these two methods of it."""

    def match(self, tokens: Sequence[int], shortest: int) -> tuple[int, NDArray[np.int64]]:
        """Return the length of the longest suffix of `tokens` that is continued here, and where: `[N]`."""

    def following(self, positions: NDArray[np.int64], width: int) -> NDArray[np.int32]:
        """Return the tokens from each position on, `[N, width]`; -1 where there are none."""


class RetrievalSession(DraftSession):
    """Drafts what most often followed the longest match. q is a point mass.

    Args:
        config: How much must match, and how much is drafted.
        searched: For each sequence, what is searched. Where several have a match of the same length, all of its
            occurrences count alike.
    """

    def __init__(self, config: MatchingConfig, searched: Sequence[Sequence[Searched]]) -> None:
        self._config = config
        self._searched = searched

    def propose(self, request: DraftRequest) -> Proposal:
        """Return the most frequent continuation of each sequence, or for a tree several."""
        pairs = zip(request.tokens, request.budget, request.depth, self._searched, strict=True)
        if request.tree is not None:
            rows = [self._continuations(*one, branches=one[1]) for one in pairs]
            return Proposal.from_continuations(rows, request.budget, request.depth)
        lines = [self._continuations(*one, branches=1) for one in pairs]
        return Proposal.from_rows([line[-1] if line else () for line in lines])

    def _continuations(
        self, tokens: Sequence[int], budget: int, depth: int, searched: Sequence[Searched], branches: int
    ) -> list[tuple[int, ...]]:
        longest = 0
        found: list[tuple[Searched, NDArray[np.int64]]] = []
        for one in searched:
            size, positions = one.match(tokens, max(longest, 1))
            if size > longest:
                longest, found = size, []
            if size and size == longest:
                found.append((one, positions))
        depth = min(depth, int(longest * self._config.max_spec_factor))
        if budget == 0 or depth == 0:
            return []
        rows = [one.following(positions, depth) for one, positions in found]
        return most_frequent(np.concatenate(rows), budget, branches, self._config.min_token_prob)


def most_frequent(
    continuations: NDArray[np.int32], budget: int, branches: int, least: float
) -> list[tuple[int, ...]]:
    """Return the beginnings that most continuations have, the most frequent first.

    Each comes after those that it begins with. Of equally frequent ones, the first comes first.

    Args:
        continuations: `[N, K]`; -1 after the end of one.
        budget: The most to return.
        branches: The most that continue another one; with 1, each continues the one before it.
        least: The smallest share of all continuations that must have a beginning.
    """
    numbers = count()
    heap = [(-len(continuations), next(numbers), (), continuations)]
    found: list[tuple[int, ...]] = []
    while heap and len(found) <= budget:
        _, _, beginning, rows = heappop(heap)
        found.append(beginning)
        if len(beginning) == continuations.shape[1]:
            continue
        column = rows[:, len(beginning)]
        for token, times in Counter(column[column >= 0].tolist()).most_common(branches):
            if times >= least * len(continuations):
                heappush(heap, (-times, next(numbers), (*beginning, token), rows[column == token]))
    return found[1:]


def _suffix_array(tokens: NDArray[np.uint32], depth: int) -> memoryview:
    """Return the positions `[T]` in the order of the (at least) `depth` tokens that begin there.

    References:
        Manber and Myers, "Suffix arrays: a new method for on-line string searches", SIAM Journal on Computing 22,
        1993: suffixes sorted by 2n tokens from those sorted by n.
    """
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    size = 1
    while size < depth:
        later = np.zeros_like(rank)
        later[:-size] = rank[size:] + 1
        rank = np.unique(rank * (len(rank) + 1) + later, return_inverse=True)[1]
        size *= 2
    positions = np.argsort(rank, kind="stable").astype(np.min_scalar_type(len(tokens)))
    return positions.data  # a view of Python integers: indexing an array is several times slower
