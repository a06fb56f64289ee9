"""N-grams with back-off as sorted tables: the row of log-probabilities after any context.

An n-gram of order n is stored below its context, the n-gram of its first n - 1 words, as a trie laid out in
arrays: the successors of context c stand at `first[c]` to `first[c + 1]`, sorted by word. Nothing is V x V.

Words are token ids, then the three that an ARPA file has beside them. Logarithms are natural.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPECIAL_WORDS = ("<s>", "</s>", "<unk>")
CACHE_BYTES = 16 << 20


@dataclass(frozen=True)
class Level:
    """All n-grams of one order, E of them, sorted by (context, word).

    Attributes:
        words: `[E]` int32, the last word of each.
        log_probability: `[E]` float32, ln p(last word | the words before it).
        log_backoff: `[E]` float32, ln of the factor of this n-gram as a context.
        first: `[C + 1]` int64, where the successors of each of the C n-grams one order below begin.
    """

    words: NDArray[np.int32]
    log_probability: NDArray[np.float32]
    log_backoff: NDArray[np.float32]
    first: NDArray[np.int64]


def find_contexts(levels: Sequence[Level], words: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Return which entry of `levels[-1]` each context is; -1 where it has none.

    Args:
        levels: The levels of orders 1 to n.
        words: `[E, n]`, the contexts.
        width: W, the number of words.

    Returns:
        `[E]` entry numbers.
    """
    entries = words[:, 0].astype(np.int64)
    for depth, level in enumerate(levels[1:], start=1):
        parents = np.repeat(np.arange(len(level.first) - 1), np.diff(level.first))
        keys = parents * width + level.words
        wanted = np.where(entries < 0, -1, entries * width + words[:, depth])
        places = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = keys[places] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
        entries = np.where(found, places, -1)
    return entries


def build_level(
    contexts: NDArray[np.int64],
    words: NDArray[np.int32],
    log_probability: NDArray[np.float32],
    log_backoff: NDArray[np.float32],
    context_count: int,
) -> Level:
    """Return the level of n-grams given in any order by context entry and last word, all `[E]`."""
    order = np.lexsort((words, contexts))
    first = np.zeros(context_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(contexts, minlength=context_count), out=first[1:])
    return Level(words[order], log_probability[order], log_backoff[order], first)


class NgramTables:
    """An n-gram model with back-off over token ids, scored as KenLM scores it.

    p(w | c) is the n-gram's own probability where `c w` is an n-gram of the model, else the back-off factor
    of c (1 where it has none) times p(w | c without its first word). Ids the model does not list are `<unk>`.

    References:
        Katz 1987 (back-off, as ARPA files store it); Heafield 2011 (KenLM, whose scores these are).

    Args:
        vocab_size: V; words are the ids below it, then `<s>`, `</s>`, `<unk>`: W = V + 3 in all.
        levels: The levels of orders 1 to N. The first has an entry for each of the W words, in order.
        known: `[W]` bool, which words the model lists.
    """

    def __init__(self, vocab_size: int, levels: Sequence[Level], known: NDArray[np.bool_]) -> None:
        self.vocab_size = vocab_size
        self.levels = tuple(levels)
        self._begin, _, self._unknown = range(vocab_size, vocab_size + 3)
        self._known = known.tolist()
        self._unlisted = np.flatnonzero(~known)
        self._unigrams = levels[0].log_probability
        self._rows: OrderedDict[tuple[int, ...], NDArray[np.float32]] = OrderedDict()
        self._max_rows = max(8, CACHE_BYTES // self._unigrams.nbytes)

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.levels)

    def context(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the words that the token after `tokens` depends on.

        A sequence shorter than the model's memory is taken to begin a sentence, if the model knows `<s>`.
        """
        length = self.order - 1
        if length == 0:
            return ()
        words = [token if self._known[token] else self._unknown for token in tokens[-length:]]
        if len(words) < length and self._known[self._begin]:
            words.insert(0, self._begin)
        return tuple(words)

    def row(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        """Return ln p(w | context) for every word: `[W]` float32, read only, at most the last rows cached.

        Over the V token ids alone it does not sum to 1: what falls on `<s>`, `</s>` and `<unk>` is missing.
        """
        if not context:
            return self._unigrams
        row = self._rows.get(context)
        if row is None:
            row = self.write_row(context, np.empty_like(self._unigrams))
            if len(self._rows) >= self._max_rows:
                self._rows.popitem(last=False)
            self._rows[context] = row
        else:
            self._rows.move_to_end(context)
        return row

    def write_row(self, context: tuple[int, ...], out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Write `row(context)` to `out` and return it; only the rows of shorter contexts are cached."""
        if not context:
            out[:] = self._unigrams
            return out
        lower = self.row(context[1:])
        entry = self._find(context)
        if entry is None:
            out[:] = lower
            return out
        np.add(lower, self.levels[len(context) - 1].log_backoff[entry], out=out)
        above = self.levels[len(context)]
        start, end = above.first[entry], above.first[entry + 1]
        words = above.words[start:end]
        out[words] = above.log_probability[start:end]
        # `<unk>` sorts last. Where it follows this context, so does every id the model does not list.
        if end > start and words[-1] == self._unknown:
            out[self._unlisted] = above.log_probability[end - 1]
        return out

    def _find(self, words: tuple[int, ...]) -> int | None:
        """Return the entry of an n-gram in the level of its order."""
        entry = words[0]
        for level, word in zip(self.levels[1:], words[1:], strict=False):
            start, end = level.first[entry], level.first[entry + 1]
            place = int(start + np.searchsorted(level.words[start:end], word))
            if place == end or level.words[place] != word:
                return None
            entry = place
        return entry
