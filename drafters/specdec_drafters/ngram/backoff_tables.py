"""N-grams with back-off as sorted tables: the log-probabilities of all words after any context.

An n-gram of order n is stored below its context, the n-gram of its first n - 1 words, as a trie laid out in
arrays: the successors of context c stand at `first[c]` to `first[c + 1]`, sorted by word. Nothing is V x V.

Words are token ids, then the three that an ARPA file has beside them. Logarithms are natural.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPECIAL_WORDS = ("<s>", "</s>", "<unk>")


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


class Successors(NamedTuple):
    """The token ids that follow a context.

    Attributes:
        ids: `[S]` int32, ascending.
        log_probability: `[S]` float32, ln p(id | context).
        log_backoff: ln of the factor of the context.
    """

    ids: NDArray[np.int32]
    log_probability: NDArray[np.float32]
    log_backoff: np.float32


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
        indices = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = keys[indices] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
        entries = np.where(found, indices, -1)
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

    def _successors(self, length: int, entry: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the words that follow an entry of the level of order `length`, and ln p of each."""
        above = self.levels[length]
        successors = slice(above.first[entry], above.first[entry + 1])
        return above.words[successors], above.log_probability[successors]

    def drafted_successors(self, context: tuple[int, ...]) -> Successors | None:
        """Return the token ids that follow a context in the model; None if the model does not have the context.

        They are views of the tables where that is possible.
        """
        entry = self._find(context)
        if entry is None:
            return None
        log_backoff = self.levels[len(context) - 1].log_backoff[entry]
        words, log_probability = self._successors(len(context), entry)
        if not len(words) or words[-1] < self.vocab_size:
            return Successors(words, log_probability, log_backoff)
        count = int(words.searchsorted(self.vocab_size))  # the special words sort last, and cannot be drafted
        ids, own = words[:count], log_probability[:count]
        if words[-1] == self._unknown:
            # All ids that the model does not list have what `<unk>` has.
            unlisted = self._unlisted[self._unlisted < self.vocab_size].astype(np.int32)
            ids, own = (
                np.append(ids, unlisted),
                np.append(own, np.full_like(unlisted, log_probability[-1], own.dtype)),
            )
            order = ids.argsort()
            ids, own = ids[order], own[order]
        return Successors(ids, own, log_backoff)

    def _find(self, words: tuple[int, ...]) -> int | None:
        """Return the entry of an n-gram in the level of its order."""
        entry = words[0]
        for level, word in zip(self.levels[1:], words[1:], strict=False):
            start, end = level.first[entry], level.first[entry + 1]
            index = int(start + np.searchsorted(level.words[start:end], word))
            if index == end or level.words[index] != word:
                return None
            entry = index
        return entry
