"""The estimator against `lmplz`, and against what a distribution must be."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specdec_core.interface import ConfigError
from specdec_drafters.ngram.kneser_ney import FALLBACK_DISCOUNTS, discounts_of, fit
from tests.drafters.ngram_models import DATA, arpa_entries, assert_same_entries, level_entries, sentences_of

REFERENCES = [("tiny", 5), ("small", 2), ("small", 3), ("tokens", 1), ("tokens", 2)]


def arrays(*sentences):
    return [np.array(sentence, dtype=np.int32) for sentence in sentences]


@pytest.mark.parametrize(("name", "order"), REFERENCES)
def test_each_ngram_as_lmplz_estimates_it(name, order):
    model = fit(sentences_of(name), 1000, order)
    expected = arpa_entries(DATA / f"{name}.{order}.arpa")
    assert_same_entries(level_entries(model.levels, model.known), expected, atol=1e-6)
    assert sum(model.ngram_counts) == len(expected)


corpora = st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=6)


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
    assert fit(arrays([0, 1, 2], [3]), 4, 3).tables().order == 3
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
