"""Estimation of n-gram models over token ids by interpolated modified Kneser-Ney smoothing, as `lmplz` does.

A document is a sentence `<s> w1 .. wn </s>`. The highest order N counts occurrences. Every lower order counts
something else, the different words that stand before an n-gram: how many ways there are to arrive at it, since
it is asked only where a longer n-gram was not enough. Before `<s>` stands nothing, so an n-gram that begins with
it keeps its occurrences. With a(h w) this adjusted count, D(a) the discount for it, and h' the context h without
its first word,

    p(w | h) = (a(h w) - D(a(h w))) / sum_v a(h v)  +  gamma(h) p(w | h')
    gamma(h) = sum_v D(a(h v)) / sum_v a(h v)

down to order 1, below which lies the uniform distribution over the words of the text, `</s>` and `<unk>`. gamma(h)
is the back-off weight of h; what `<unk>` gets there is the probability of each id that the text lacks. Rows sum to
1 over the text's words, `</s>` and `<unk>`.

D(0) = 0 and D(1), D(2), D(3 and more) come, for each order, from how many n-grams have an adjusted count of 1, 2,
3 and 4: see `discounts_of`. There `lmplz` (KenLM 0.3.0) enters one n-gram of each lower order with its occurrences
instead of its adjusted count: the last in its order of sorting. The same is done here (`_tallies`), since models
of small texts equal those of `lmplz` only then; of large texts it moves nothing that could be noticed.

References:
    Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", section 3 and
    equation 26 (modified Kneser-Ney); Heafield, Pouzyrevsky, Clark and Koehn 2013, "Scalable Modified Kneser-Ney
    Language Model Estimation" (`lmplz`, whose treatment of `<s>`, `<unk>` and small texts this follows).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import ConfigError
from specdec_drafters.common.texts import check_ids
from specdec_drafters.ngram.backoff_tables import SPECIAL_WORDS, Level, NgramTables, build_level

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

# D(1), D(2) and D(3 and more) where the text is too small to tell: the defaults of `lmplz --discount_fallback`.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
# Stands for 0, as in ARPA files by SRILM. Only a discount of exactly 0 leaves a weight of 0; `lmplz` writes -inf.
MIN_PROBABILITY = 1e-99


@dataclass(frozen=True)
class Discounts:
    """The discounts of the adjusted counts of one order.

    Attributes:
        amounts: D(1), D(2), D(3 and more).
        fallback: Whether these are the fallback, because the text does not determine them.
    """

    amounts: tuple[float, float, float]
    fallback: bool

    def of(self, counts: Integers) -> Floats:
        """Return D of each count, `[E]`; 0 of 0."""
        return np.array((0.0, *self.amounts))[np.minimum(counts, 3)]


@dataclass(frozen=True)
class KneserNeyModel:
    """An estimated model.

    Attributes:
        vocab_size: V; words are the ids below it, then `<s>`, `</s>`, `<unk>`: W = V + 3 in all.
        levels: The n-grams of orders 1 to N. Order 1 has all W words; those not `known` score as `<unk>`.
        known: `[W]` bool, which words the text has; `<s>`, `</s>` and `<unk>` always.
        discounts: What was taken from each order.
    """

    vocab_size: int
    levels: tuple[Level, ...]
    known: NDArray[np.bool_]
    discounts: tuple[Discounts, ...]

    @property
    def ngram_counts(self) -> tuple[int, ...]:
        """How many n-grams of each order an ARPA file of this model lists."""
        return (int(self.known.sum()), *(len(level.words) for level in self.levels[1:]))

    def tables(self) -> NgramTables:
        """Return the model ready for look-ups, equal to its ARPA file read back."""
        return NgramTables(self.vocab_size, self.levels, self.known)


def fit(
    documents: Sequence[NDArray[np.int32]],
    vocab_size: int,
    order: int,
    progress: Callable[[int], None] = lambda _: None,
) -> KneserNeyModel:
    """Estimate a model; no n-gram reaches over the end of a document.

    Args:
        documents: One array `[T]` of token ids each; each is a sentence, also an empty one.
        vocab_size: V; ids must be below it.
        order: N, the longest n-grams.
        progress: Called with how many orders have been counted.

    Raises:
        ConfigError: if no document is as long as `order`, or an id is not below `vocab_size`.
    """
    _check(documents, vocab_size, order)
    stream, remaining = _sentences(documents, vocab_size)
    counted = _count(stream, remaining, vocab_size, order, progress)
    first_seen = _first_seen(stream, vocab_size)
    discounts = tuple(discounts_of(tally) for tally in _tallies(counted, first_seen))
    known = first_seen >= 0
    known[vocab_size:] = True
    shares = [_share(level, taken) for level, taken in zip(counted, discounts, strict=True)]
    uniform = 1 / (int(known.sum()) - 1)  # `<s>` is never foretold
    probability = shares[0].own + shares[0].gamma[0] * uniform
    probability[vocab_size] = 1.0  # as `lmplz` writes for `<s>`
    levels: list[Level] = []
    for index, level in enumerate(counted):
        if index:
            probability = shares[index].own + shares[index].gamma[level.contexts] * probability[level.shorter]
        is_context = index + 1 < order
        backoff = shares[index + 1].gamma if is_context else np.ones(len(level.words))
        logs = _logarithm(probability), _logarithm(backoff)
        levels.append(build_level(level.contexts, level.words, *logs, level.context_count))
    return KneserNeyModel(vocab_size, tuple(levels), known, discounts)


def discounts_of(tally: Sequence[int]) -> Discounts:
    """Return the discounts of one order.

    With n_k the number of n-grams whose adjusted count is k, and Y = n_1 / (n_1 + 2 n_2),
    D(k) = k - (k + 1) Y n_(k + 1) / n_k, for k = 1, 2 and 3. They do not exist where n_1, n_2 or n_3 is 0, and
    mean nothing where D(k) is not in [0, k]; the whole order falls back then.

    Args:
        tally: n_1, n_2, n_3 and n_4.

    References:
        Equation 26 of Chen and Goodman 1998.
    """
    # In float32 and in this order, like `lmplz`, so that what lies on an edge falls to the same side.
    single = np.float32
    n = dict(enumerate(map(single, tally), start=1))
    if not (n[1] and n[2] and n[3]):
        return Discounts(FALLBACK_DISCOUNTS, fallback=True)
    y = n[1] / single(tally[0] + 2.0 * tally[1])
    amounts = [single(k) - single(k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
    if not all(0 <= amount <= k for k, amount in enumerate(amounts, start=1)):
        return Discounts(FALLBACK_DISCOUNTS, fallback=True)
    return Discounts((float(amounts[0]), float(amounts[1]), float(amounts[2])), fallback=False)


@dataclass(frozen=True)
class _Counted:
    """The E n-grams of one order, sorted by (context, word).

    Attributes:
        contexts: `[E]`, which entry of the order below each begins with.
        words: `[E]`, its last word.
        shorter: `[E]`, which entry of the order below it is without its first word.
        occurrences: `[E]`, how often it occurs.
        counts: `[E]`, its adjusted count.
        context_count: How many entries the order below has.
    """

    contexts: Integers
    words: NDArray[np.int32]
    shorter: Integers
    occurrences: Integers
    counts: Integers
    context_count: int


@dataclass(frozen=True)
class _Share:
    """How the probability after each context is shared between its n-grams and the order below.

    Attributes:
        own: `[E]`, what an n-gram's own count gives it.
        gamma: `[C]`, what each context leaves to the order below; 1 where it is none.
    """

    own: Floats
    gamma: Floats


def _check(documents: Sequence[NDArray[np.int32]], vocab_size: int, order: int) -> None:
    longest = max((len(document) for document in documents), default=0)
    if longest < order:
        raise ConfigError(
            f"the text has {longest} token(s) in a row; n-grams of order {order} need at least {order}. "
            "Give a longer text or a lower order."
        )
    check_ids(documents, vocab_size)


def _count(
    stream: NDArray[np.int32],
    remaining: Integers,
    vocab_size: int,
    order: int,
    progress: Callable[[int], None],
) -> list[_Counted]:
    """Return the n-grams of orders 1 to `order` with their adjusted counts; for the rest see `_sentences`."""
    width = vocab_size + len(SPECIAL_WORDS)
    unigrams = np.bincount(stream, minlength=width)
    unigrams[vocab_size] = 0  # `<s>` is given, not foretold
    nothing = np.zeros(width, dtype=np.int64)
    levels = [_Counted(nothing, np.arange(width, dtype=np.int32), nothing, unigrams, unigrams, 1)]
    entries = stream.astype(np.int64)  # which entry of the last level begins at each position
    progress(1)
    for size in range(2, order + 1):
        positions = np.flatnonzero(remaining >= size)
        # An entry's number, not its words, is half of the key: 64 bits are enough for any order.
        keys = entries[positions] * width + stream[positions + (size - 1)]
        distinct, found, counts = np.unique(keys, return_inverse=True, return_counts=True)
        shorter = np.empty(len(distinct), dtype=np.int64)
        shorter[found] = entries[positions + 1]
        contexts, words = np.divmod(distinct, width)
        below = levels[-1]
        before = np.bincount(shorter, minlength=len(below.words))  # different words before each n-gram
        levels[-1] = replace(below, counts=np.where(before > 0, before, below.occurrences))  # none before `<s>`
        levels.append(_Counted(contexts, words.astype(np.int32), shorter, counts, counts, len(below.words)))
        entries = np.full(len(stream), -1, dtype=np.int64)
        entries[positions] = found
        progress(size)
    return levels


def _sentences(documents: Sequence[NDArray[np.int32]], vocab_size: int) -> tuple[NDArray[np.int32], Integers]:
    """Return all sentences in a row, with `<s>` and `</s>`, and the words from each position to its end."""
    lengths = np.array([len(document) + 2 for document in documents])
    ends = np.cumsum(lengths)
    inside = np.ones(int(ends[-1]), dtype=bool)
    inside[ends - lengths] = inside[ends - 1] = False
    stream = np.full(len(inside), vocab_size, dtype=np.int32)
    stream[ends - 1] = vocab_size + 1
    stream[inside] = np.concatenate(documents)
    return stream, np.repeat(ends, lengths) - np.arange(len(stream))


def _first_seen(stream: NDArray[np.int32], vocab_size: int) -> Integers:
    """Return where each word is first seen, `[W]`; -1 for what is not seen and for the special words."""
    positions = np.full(vocab_size + len(SPECIAL_WORDS), -1, dtype=np.int64)
    positions[stream[::-1]] = np.arange(len(stream))[::-1]  # of several assignments the last one stays
    positions[vocab_size:] = -1
    return positions


def _tallies(levels: Sequence[_Counted], first_seen: Integers) -> list[list[int]]:
    """Return n_1, n_2, n_3 and n_4 of each order, with the exception that `lmplz` makes.

    The exception is the last n-gram of a lower order when words are numbered as they are first seen, and n-grams
    sorted by their last word, then the one before it, and so on.

    Args:
        levels: All orders.
        first_seen: `[W]`, see `_first_seen`.
    """
    tallies = [np.bincount(np.minimum(level.counts, 5), minlength=6) for level in levels]
    last = int(np.argmax(first_seen))
    for index, level in enumerate(levels[:-1]):
        if index:
            longer = np.flatnonzero(level.shorter == last)
            if not len(longer):  # nothing stands before `<s>`
                break
            first_words = longer
            for between in reversed(levels[1 : index + 1]):
                first_words = between.contexts[first_words]
            last = int(longer[np.argmax(first_seen[first_words])])
        tallies[index][min(level.counts[last], 5)] -= 1
        tallies[index][min(level.occurrences[last], 5)] += 1
    return [tally[1:5].tolist() for tally in tallies]


def _share(level: _Counted, discounts: Discounts) -> _Share:
    taken = discounts.of(level.counts)
    totals = np.bincount(level.contexts, weights=level.counts, minlength=level.context_count)
    freed = np.bincount(level.contexts, weights=taken, minlength=level.context_count)
    gamma = np.ones(level.context_count)  # what was never continued leaves everything
    np.divide(freed, totals, out=gamma, where=totals > 0)
    return _Share((level.counts - taken) / totals[level.contexts], gamma)


def _logarithm(values: Floats) -> NDArray[np.float32]:
    # Rounding may bring a probability of nearly 1 above it.
    return np.log(np.clip(values, MIN_PROBABILITY, 1.0)).astype(np.float32)
