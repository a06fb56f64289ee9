"""The estimator against `lmplz`, against the definition, and against what a distribution must be."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specdec_core.interface import ConfigError
from specdec_drafters.ngram.kneser_ney import FALLBACK_DISCOUNTS, discounts_of, estimate, fit
from tests.drafters.ngram_models import (
    DATA,
    arpa_entries,
    assert_same_entries,
    level_entries,
    sentences_of,
)

REFERENCES = [("tiny", 5), ("small", 2), ("small", 3), ("tokens", 1), ("tokens", 2)]


def arrays(*sentences):
    return [np.array(sentence, dtype=np.int32) for sentence in sentences]


@pytest.mark.parametrize(("name", "order"), REFERENCES)
def test_each_ngram_as_lmplz_estimates_it(name, order):
    model = fit(sentences_of(name), 1000, order)
    expected = arpa_entries(DATA / f"{name}.{order}.arpa")
    assert_same_entries(level_entries(model.levels, model.known), expected, atol=1e-6)
    assert sum(model.ngram_counts) == len(expected)


# The definition, a word and a sum at a time, in fractions


class Definition:
    """Modified Kneser-Ney of Chen and Goodman 1998, with the begins and ends of sentences that `lmplz` puts."""

    def __init__(self, sentences, order):
        padded = [("<s>", *map(str, sentence), "</s>") for sentence in sentences]
        self.occurrences = [
            Counter(s[i : i + n] for s in padded for i in range(len(s) - n + 1)) for n in range(order + 1)
        ]
        del self.occurrences[1][("<s>",)]
        self.adjusted = [{}, *(self._adjusted(n, order) for n in range(1, order + 1))]
        seen = dict.fromkeys(word for sentence in sentences for word in map(str, sentence))
        self.words = [*seen, "</s>", "<unk>"]
        self._newness = {word: position for position, word in enumerate(["<s>", "</s>", *seen])}
        self.discounts = [self._discounts(n, order) for n in range(order + 1)]

    def _adjusted(self, n, order):
        if n == order:
            return dict(self.occurrences[n])
        longer = self.occurrences[n + 1]
        ngrams = set(self.occurrences[n])
        return {
            g: self.occurrences[n][g] if g[0] == "<s>" else len({h[0] for h in longer if h[1:] == g})
            for g in ngrams
        }

    def _discounts(self, n, order):
        if n == 0:
            return None
        counts = dict(self.adjusted[n])
        if n < order:
            last = self._last(n)
            if last is not None:
                counts[last] = self.occurrences[n][last]
        n_of = Counter(counts.values())
        if not (n_of[1] and n_of[2] and n_of[3]):
            return [Fraction(0), *map(Fraction, FALLBACK_DISCOUNTS)]
        y = Fraction(n_of[1], n_of[1] + 2 * n_of[2])
        d = [k - (k + 1) * y * Fraction(n_of[k + 1], n_of[k]) if k else Fraction(0) for k in range(4)]
        assume(all(abs(d[k]) > 1e-5 for k in (1, 2, 3)))  # on this edge single precision decides
        if any(not 0 <= d[k] <= k for k in (1, 2, 3)):
            return [Fraction(0), *map(Fraction, FALLBACK_DISCOUNTS)]
        return d

    def _last(self, n):
        """Return what `lmplz` counts otherwise: the last n-gram as it sorts, up to one that begins with `<s>`."""
        if n > 1 and (self._last(n - 1) is None or self._last(n - 1)[0] == "<s>"):
            return None
        return max(self.adjusted[n], key=lambda g: [self._newness[word] for word in reversed(g)])

    def gamma(self, context):
        counts = [c for g, c in self.adjusted[len(context) + 1].items() if g[:-1] == context]
        d = self.discounts[len(context) + 1]
        return sum(d[min(c, 3)] for c in counts) / sum(counts) if counts else Fraction(1)

    def p(self, context, word):
        lower = self.p(context[1:], word) if context else Fraction(1, len(self.words))
        total = sum(c for g, c in self.adjusted[len(context) + 1].items() if g[:-1] == context)
        if not total:
            return lower
        c = self.adjusted[len(context) + 1].get((*context, word), 0)
        return (c - self.discounts[len(context) + 1][min(c, 3)]) / total + self.gamma(context) * lower


def logs(probability, backoff):
    return math.log10(probability), math.log10(backoff)


corpora = st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None)
@given(sentences=corpora, order=st.integers(1, 5))
def test_estimates_equal_the_definition(sentences, order):
    assume(max(map(len, sentences)) >= order)
    model = fit(arrays(*sentences), 6, order)
    definition = Definition(sentences, order)
    expected = {("<s>",): (0.0, math.log10(definition.gamma(("<s>",))) if order > 1 else 0.0)}
    expected[("<unk>",)] = (math.log10(definition.p((), "<unk>")), 0.0)
    for n in range(1, order + 1):
        for ngram in definition.adjusted[n]:
            backoff = definition.gamma(ngram) if n < order else 1
            expected[ngram] = logs(definition.p(ngram[:-1], ngram[-1]), backoff)
    assert_same_entries(level_entries(model.levels, model.known), expected, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(sentences=corpora, order=st.integers(1, 5))
def test_every_row_sums_to_one(sentences, order):
    assume(max(map(len, sentences)) >= order)
    vocab_size = 8  # 5, 6 and 7 never occur
    model = fit(arrays(*sentences), vocab_size, order)
    tables = model.tables()
    begin, end, unknown = range(vocab_size, vocab_size + 3)
    listed = [*(w for w in range(vocab_size) if model.known[w]), end, unknown]
    contexts = {tuple(s[i : i + order - 1]) for s in sentences for i in range(len(s))} | {(0, 4), (7,), (unknown,)}
    for context in [*contexts, *((begin, *s[: order - 2]) for s in sentences if order > 1), ()]:
        row = np.exp(tables.row(context[: order - 1]).astype(float))
        assert row[listed].sum() == pytest.approx(1, abs=1e-5)
        np.testing.assert_array_equal(row[5:8], row[unknown])


# Edges


def test_an_order_as_long_as_the_longest_document_and_no_longer():
    assert estimate(arrays([0, 1, 2], [3]), 4, 3).order == 3
    with pytest.raises(ConfigError, match=r"has 3 token\(s\) in a row; n-grams of order 4 need at least 4"):
        fit(arrays([0, 1, 2], [3]), 4, 4)
    for nothing in ([], arrays([]), arrays([], [])):
        with pytest.raises(ConfigError, match=r"has 0 token\(s\)"):
            fit(nothing, 4, 1)


@pytest.mark.parametrize("wrong", [4, 9, -1])
def test_ids_beyond_the_vocabulary(wrong):
    with pytest.raises(
        ConfigError, match=f"token id {wrong} is in the text; the target's vocabulary has the ids 0 to 3"
    ):
        fit(arrays([0, 3], [], [1, wrong]), 4, 1)


@pytest.mark.parametrize(
    ("tally", "amounts"),
    [
        ((4, 2, 2, 0), (1 - 2 * 0.5 * 2 / 4, 2 - 3 * 0.5 * 2 / 2, 3.0)),
        ((4, 2, 2, 1), (0.5, 0.5, 3 - 4 * 0.5 * 1 / 2)),
        ((12, 6, 6, 9), (0.5, 0.5, 0.0)),  # 0 is within the range
        ((12, 6, 6, 10), None),  # D(3) < 0
        ((4, 2, 3, 1), None),  # D(2) < 0
        ((0, 0, 0, 0), None),
    ],
)
def test_discounts(tally, amounts):
    taken = discounts_of(tally)
    assert taken.fallback == (amounts is None)
    assert taken.amounts == pytest.approx(amounts or FALLBACK_DISCOUNTS)
    np.testing.assert_allclose(taken.of(np.array([0, 1, 2, 3, 70])), [0, *taken.amounts, taken.amounts[2]])


def test_a_context_that_leaves_nothing_stays_finite():
    """Where D(3 and more) is 0, a context whose successors all occur so often has a back-off weight of 0."""
    repeats = [1] * 4 + [2] * 2 + [3] * 2 + [4] * 3
    sentences = [[2 * i, 2 * i + 1] for i, n in enumerate(repeats) for _ in range(n)]
    model = fit(arrays(*sentences), 40, 2)
    assert model.discounts[1].amounts == (0.5, 0.5, 0.0)
    assert all(np.isfinite(level.log_backoff).all() for level in model.levels)
    row = model.tables().row((20,))
    assert np.exp(row[21]) == 1
    assert np.exp(row[:20].astype(float)).max() < 1e-90


def test_large_vocabularies_and_high_orders_do_not_overflow():
    rng = np.random.default_rng(0)
    document = rng.integers(0, 3, 400).astype(np.int32) + np.int32(299_990)
    small = fit([document - np.int32(299_990)], 3, 12)
    large = fit([document], 300_000, 12)
    assert large.ngram_counts == small.ngram_counts
    for low, high in zip(small.levels[1:], large.levels[1:], strict=True):
        np.testing.assert_array_equal(low.log_probability, high.log_probability)
        np.testing.assert_array_equal(low.log_backoff, high.log_backoff)
