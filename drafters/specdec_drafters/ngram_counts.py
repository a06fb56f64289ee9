"""Estimate n-gram tables from token ids by interpolated absolute discounting.

With c(h w) the count of n-gram h w, c(h) their sum over w, n(h) how many different words follow h, and D a
discount for each order,

    p(w | h) = max(c(h w) - D, 0) / c(h)  +  D n(h) / c(h) * p(w | h without its first word)

down to order 1, which is mixed with 1/V in the same way. Every token of the vocabulary has mass after every
context, and each row sums to 1. D n(h) / c(h) is the back-off weight of h, so that tables which were counted
and tables which were read from an ARPA file are scored alike.

References:
    Ney, Essen and Kneser 1994 (absolute discounting, interpolated; D = n1 / (n1 + 2 n2)). Unlike Kneser-Ney,
    lower orders are estimated from their own counts, not from the number of different words before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec_core.errors import ConfigError
from specdec_drafters.ngram_tables import SPECIAL_WORDS, Level, NgramTables, build_level, find_contexts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Where no n-gram occurs once, or none twice, the estimate of D does not exist.
FALLBACK_DISCOUNT = 0.5


def count_ngrams(documents: Sequence[NDArray[np.int32]], vocab_size: int, order: int) -> NgramTables:
    """Return n-gram tables of token sequences; no n-gram reaches over the end of a document.

    Args:
        documents: One array `[T]` of token ids each.
        vocab_size: V; ids must be below it.
        order: The longest n-grams.

    Raises:
        ConfigError: if no document is as long as `order`, or an id is not below `vocab_size`.
    """
    longest = max((len(document) for document in documents), default=0)
    if longest < order:
        raise ConfigError(
            f"the text has {longest} token(s) in a row; n-grams of order {order} need at least {order}. "
            "Give a longer text or a lower order."
        )
    tokens = np.concatenate(documents)
    if int(tokens.max()) >= vocab_size or int(tokens.min()) < 0:
        raise ConfigError(
            f"the tokenizer made token id {int(tokens.max())} of the text; the target's vocabulary ends at "
            f"{vocab_size - 1}. Give the tokenizer that belongs to the target."
        )
    remaining = np.concatenate([np.arange(len(document), 0, -1) for document in documents])
    level, probability = _count_unigrams(tokens, vocab_size)
    levels = [level]
    entries = tokens.astype(np.int64)  # the n-gram that begins at each place, as an entry of the last level
    for size in range(2, order + 1):
        places = np.flatnonzero(remaining >= size)
        levels[-1], level, probability, found = _count_level(
            levels, probability, entries[places], tokens[places + size - 1]
        )
        levels.append(level)
        entries = np.full(len(tokens), -1, dtype=np.int64)
        entries[places] = found
    known = np.zeros(vocab_size + len(SPECIAL_WORDS), dtype=bool)
    known[:vocab_size] = True
    return NgramTables(vocab_size, levels, known)


def discount(counts: NDArray[np.int64]) -> float:
    """Return D = n1 / (n1 + 2 n2), n1 and n2 being how many n-grams occur once and twice."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else FALLBACK_DISCOUNT


def _count_unigrams(tokens: NDArray[np.int32], vocab_size: int) -> tuple[Level, NDArray[np.float64]]:
    """Return the level of order 1 without back-off weights, and its probabilities `[W]`."""
    width = vocab_size + len(SPECIAL_WORDS)
    counts = np.bincount(tokens, minlength=vocab_size)
    d = discount(counts)
    uniform = d * np.count_nonzero(counts) / len(tokens) / vocab_size
    probability = np.zeros(width)
    probability[:vocab_size] = np.maximum(counts - d, 0) / len(tokens) + uniform
    with np.errstate(divide="ignore"):  # the special words have no mass
        logs = np.log(probability).astype(np.float32)
    words = np.arange(width, dtype=np.int32)
    level = build_level(np.zeros(width, dtype=np.int64), words, logs, np.zeros_like(logs), 1)
    return level, probability


def _count_level(
    levels: Sequence[Level],
    lower_probability: NDArray[np.float64],
    contexts: NDArray[np.int64],
    words: NDArray[np.int32],
) -> tuple[Level, Level, NDArray[np.float64], NDArray[np.int64]]:
    """Count the n-grams one order above `levels`.

    Args:
        levels: The levels below.
        lower_probability: `[C]`, p of each entry of `levels[-1]`.
        contexts: `[T]`, the entry of `levels[-1]` that each n-gram of the text begins with.
        words: `[T]`, the word it ends with.

    Returns:
        `levels[-1]` with its back-off weights; the new level; p of its entries `[E]`; the entry of each
        n-gram of the text `[T]`.
    """
    lower = levels[-1]
    width = len(levels[0].words)
    keys, found, counts = np.unique(contexts * width + words, return_inverse=True, return_counts=True)
    context_of, word_of = keys // width, (keys % width).astype(np.int32)
    context_count = len(lower.words)
    totals = np.bincount(context_of, weights=counts, minlength=context_count)
    followers = np.bincount(context_of, minlength=context_count)
    d = discount(counts)
    backoff = np.where(totals > 0, d * followers / np.maximum(totals, 1), 1.0)
    shorter = _drop_first_word(levels, context_of, word_of)
    probability = (counts - d) / totals[context_of] + backoff[context_of] * lower_probability[shorter]
    level = build_level(
        context_of,
        word_of,
        np.log(probability).astype(np.float32),
        np.zeros(len(keys), dtype=np.float32),
        context_count,
    )
    weighted = Level(lower.words, lower.log_probability, np.log(backoff).astype(np.float32), lower.first)
    return weighted, level, probability, found


def _drop_first_word(
    levels: Sequence[Level], contexts: NDArray[np.int64], words: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the entry of `levels[-1]` that each n-gram (context, word) is without its first word, `[E]`."""
    columns = [words]
    entries = contexts
    for level in reversed(levels[1:]):
        columns.append(level.words[entries])
        entries = np.searchsorted(level.first, entries, side="right") - 1
    spelled = np.stack(columns[::-1], axis=1)  # without the first word, which `entries` has become
    return find_contexts(levels, spelled, len(levels[0].words))
