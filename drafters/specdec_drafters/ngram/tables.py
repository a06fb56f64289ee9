"""N-grams with back-off as sorted tables: the log-probabilities of all words after any context.

An n-gram of order n is stored below its context, the n-gram of its first n - 1 words, as a trie laid out in
arrays: the successors of context c stand at `first[c]` to `first[c + 1]`, sorted by word. Nothing is V x V.

Words are token ids, then the three that an ARPA file has beside them. Logarithms are natural.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.interface import BackoffRow, LowerOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPECIAL_WORDS = ("<s>", "</s>", "<unk>")
CACHE_BYTES = 32 << 20


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

    After a context, all words but few have the unigrams' probabilities times one factor. `backoff_row` says it in
    this form, which is what drafting needs; `row` writes it out.

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
        lower_order = LowerOrder(levels[0].log_probability[:vocab_size])
        self._unigrams = BackoffRow(lower_order, np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))
        self._cache: OrderedDict[tuple[int, ...], BackoffRow] = OrderedDict()
        self._cache_left = CACHE_BYTES

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.levels)

    def context(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the words that the token after `tokens` depends on.

        A sequence shorter than the model's memory is taken to begin a sentence, if the model knows `<s>`.
        """
        length = len(self.levels) - 1
        if length == 0:
            return ()
        known, unknown = self._known, self._unknown
        words = [token if known[token] else unknown for token in tokens[-length:]]
        if len(words) < length and known[self._begin]:
            words.insert(0, self._begin)
        return tuple(words)

    def row(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        """Return ln p(w | context) for every word: `[W]` float32.

        Over the V token ids alone it does not sum to 1: what falls on `<s>`, `</s>` and `<unk>` is missing.
        """
        if not context:
            return self.levels[0].log_probability.copy()
        out = self.row(context[1:])
        entry = self._find(context)
        if entry is None:
            return out
        out += self.levels[len(context) - 1].log_backoff[entry]
        words, log_probability = self._successors(len(context), entry)
        out[words] = log_probability
        # `<unk>` sorts last. Where it follows this context, so does every id the model does not list.
        if len(words) and words[-1] == self._unknown:
            out[self._unlisted] = log_probability[-1]
        return out

    def backoff_row(self, context: tuple[int, ...]) -> BackoffRow:
        """Return ln p(w | context) for the V token ids, on top of the unigrams; the last ones are cached."""
        if not context:
            return self._unigrams
        row = self._cache.get(context)
        if row is not None:
            self._cache.move_to_end(context)
            return row
        row = self._lay_over(context)
        self._cache[context] = row
        self._cache_left -= _bytes_of(row)
        while self._cache_left < 0 and len(self._cache) > 1:
            self._cache_left += _bytes_of(self._cache.popitem(last=False)[1])
        return row

    def _lay_over(self, context: tuple[int, ...]) -> BackoffRow:
        """Lay the successors of a context over the row of the context without its first word."""
        lower = self.backoff_row(context[1:])
        entry = self._find(context)
        if entry is None:
            return lower
        factor = self.levels[len(context) - 1].log_backoff[entry]
        ids, log_weights = self._drafted_successors(len(context), entry)
        ids, log_weights = _merge(lower.ids, lower.log_weights + factor, ids, log_weights)
        return BackoffRow(lower.lower_order, ids, log_weights, lower.log_backoff_weight + float(factor))

    def _successors(self, length: int, entry: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the words that follow an entry of the level of order `length`, and ln p of each."""
        above = self.levels[length]
        successors = slice(above.first[entry], above.first[entry + 1])
        return above.words[successors], above.log_probability[successors]

    def _drafted_successors(self, length: int, entry: int) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
        """Return the token ids that follow an entry, and ln p of each; views where that is possible."""
        words, log_probability = self._successors(length, entry)
        if not len(words) or words[-1] < self.vocab_size:
            return words, log_probability
        count = int(words.searchsorted(self.vocab_size))  # the special words sort last, and cannot be drafted
        ids, log_weights = words[:count], log_probability[:count]
        if words[-1] == self._unknown:
            # All ids that the model does not list have what `<unk>` has.
            unlisted = self._unlisted[self._unlisted < self.vocab_size]
            return _merge(ids, log_weights.copy(), unlisted, np.full(len(unlisted), log_probability[-1]))
        return ids, log_weights

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


def _merge(
    ids: NDArray[np.integer],
    log_weights: NDArray[np.floating],
    above: NDArray[np.integer],
    log_weights_above: NDArray[np.floating],
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return the ids of both, ascending, each with its weight from above where it has one there.

    `log_weights` may be written to.
    """
    if not len(above) or not len(ids):
        return (ids, log_weights) if len(ids) else (above, log_weights_above)
    places = np.minimum(ids.searchsorted(above), len(ids) - 1)
    if (ids[places] == above).all():  # in interpolated models, what follows the longer follows the shorter
        log_weights[places] = log_weights_above
        return ids, log_weights
    both = np.union1d(ids, above)
    merged = np.empty(len(both), dtype=np.float32)
    merged[both.searchsorted(ids)] = log_weights
    merged[both.searchsorted(above)] = log_weights_above
    return both, merged


def _bytes_of(row: BackoffRow) -> int:
    """Return about how much memory a cached row takes, with what the core keeps with it."""
    return 1000 + 32 * len(row.ids)
