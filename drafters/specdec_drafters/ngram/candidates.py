"""The tokens that may be drafted after a context: a bounded number of them, whatever V is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import Candidates
from specdec_drafters.ngram.backoff_tables import NgramTables

CACHE_BYTES = 32 << 20
"""About the most memory that cached candidates take: 20 bytes for each, and 1000 for what is kept with them."""


Context = TypeVar("Context", bound=Hashable)


class NgramModel(ABC, Generic[Context]):
    """An n-gram model as the drafter asks it. It keeps the candidates of the last contexts.

    Args:
        memory: How many last tokens the candidates depend on.
        most: The most candidates of a context.
    """

    after: Callable[[Context], Candidates]
    """Returns the candidates after a context that `context` returned."""

    def __init__(self, memory: int, most: int) -> None:
        self.memory = memory
        self.after = lru_cache(max(1, CACHE_BYTES // (1000 + 20 * most)))(self._choose)

    @abstractmethod
    def context(self, tokens: Sequence[int]) -> Context:
        """Return the context of the next token after `tokens`: the last `memory` of a text, or more."""

    @abstractmethod
    def row(self, context: Context) -> NDArray[np.float32]:
        """Return the log weights `[V]` of all tokens after a context."""

    @abstractmethod
    def _choose(self, context: Context) -> Candidates:
        """Return the candidates after a context that is not cached."""


class NgramCandidates(NgramModel[tuple[int, ...]]):
    """Chooses the candidates of each context from tables.

    They are the ids that follow the context in the model, then those that follow the context without its first
    word, and so on, then the most probable of all ids, until there are enough. If more ids follow a context than
    are needed, they are the most probable of these. Each has the log-probability that `NgramTables.row` gives it.

    Args:
        tables: The model.
        most: The most candidates of a context, at least 1.
    """

    def __init__(self, tables: NgramTables, most: int) -> None:
        super().__init__(tables.order - 1, most)
        self._tables = tables
        self._most = most
        unigrams = tables.levels[0].log_probability[: tables.vocab_size]
        order = np.argsort(-unigrams, kind="stable")[:most]
        ascending = order.argsort()
        self._unigrams = order[ascending].astype(np.int32)
        self._unigram_ranks = ascending
        self._unigram_log_probability = unigrams[self._unigrams]

    def context(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """See `NgramTables.context`."""
        return self._tables.context(tokens)

    def row(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        """Return ln p of all tokens, `[V]`; see `NgramTables.row`."""
        return self._tables.row(context)[: self._tables.vocab_size]

    def _choose(self, context: tuple[int, ...]) -> Candidates:
        ids: list[NDArray[np.int32]] = []
        log_weights: list[NDArray[np.float32]] = []
        left, log_backoff = self._most, np.float32(0)
        while context and left:
            found = self._tables.drafted_successors(context)
            if found is not None:
                own, log_probability = most_probable(found.ids, found.log_probability, left)
                ids.append(own)
                log_weights.append(log_probability + log_backoff)
                left -= len(own)
                log_backoff += found.log_backoff
            context = context[1:]
        if left:
            leading = self._unigram_ranks < left
            ids.append(self._unigrams[leading])
            log_weights.append(self._unigram_log_probability[leading] + log_backoff)
        return Candidates(*_merge(ids, log_weights))


def most_probable(
    ids: NDArray[np.int32], log_weights: NDArray[np.float32], most: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the ids with the largest weights, in the order that they have, and these weights."""
    if len(ids) <= most:
        return ids, log_weights
    kept = np.sort(np.argpartition(-log_weights, most - 1)[:most])
    return ids[kept], log_weights[kept]


def _merge(
    ids: Sequence[NDArray[np.int32]], log_weights: Sequence[NDArray[np.float32]]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the ids of ascending lists as one, each with its weight from the first list that has it."""
    if len(ids) == 1:
        return ids[0], log_weights[0]
    together = np.concatenate(ids)
    order = together.argsort(kind="stable")  # merges ascending lists
    ascending = together[order]
    first = np.empty(len(order), dtype=np.bool_)
    first[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first], np.concatenate(log_weights)[order[first]]
