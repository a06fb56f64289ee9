"""Matches of `suffix` and `datastore`, against searches that try every position, and their drafts."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_drafters.common.retrieval import TokenIndex, most_frequent
from tests.drafters.brute_force_search import search

texts = st.lists(st.lists(st.integers(0, 2), max_size=30), min_size=1, max_size=4)
letters = st.lists(st.integers(0, 2), max_size=30)
longest = st.integers(1, 6)


@given(texts, letters, longest)
def test_an_index_finds_all_longest_matches_and_what_follows_them(texts, tokens, longest):
    index = TokenIndex.of(texts, longest)
    size, positions = index.match(tokens)
    expected_size, expected = search(texts, tokens, longest)
    assert size == expected_size
    found = [[token for token in row if token >= 0] for row in index.following(positions, 1).tolist()]
    assert sorted(found) == sorted(text[:1] for text in expected)
    # What comes after the end of a text is not part of it.
    rows = index.following(positions, 40).tolist()
    assert sorted([*row, -1][: [*row, -1].index(-1)] for row in rows) == sorted(expected)


@given(texts, texts, letters, longest)
def test_merging_indexes_is_indexing_all_texts(first, second, tokens, longest):
    merged = TokenIndex.of(first, longest).merged(TokenIndex.of(second, longest))
    whole = TokenIndex.of(first + second, longest)
    (size, found), (expected_size, expected) = merged.match(tokens), whole.match(tokens)
    assert size == expected_size
    assert found.tolist() == expected.tolist()
    assert merged.texts == len(first + second)


def test_of_very_many_matches_evenly_chosen_ones_keep_their_shares():
    index = TokenIndex.of([[7, 1] * 1500 + [7, 2] * 4500], 1)
    size, positions = index.match([7])
    followed = Counter(index.following(positions, 1)[:, 0].tolist())
    assert size == 1
    assert 500 <= followed.total() <= 1000
    assert followed[1] / followed.total() == pytest.approx(0.25, abs=0.01)


def test_matches_at_the_end_of_a_text_are_left_out():
    index = TokenIndex.of([[7, 1], [7]] * 20, 1)
    size, positions = index.match([7])
    assert size == 1
    assert index.following(positions, 1).tolist() == [[1]] * 20


@given(texts, letters, longest, st.integers(1, 7))
def test_matches_shorter_than_asked_are_left_out(texts, tokens, longest, shortest):
    index = TokenIndex.of(texts, longest)
    size, positions = index.match(tokens)
    expected = (size, positions.tolist()) if size >= shortest else (0, [])
    size, positions = index.match(tokens, shortest)
    assert (size, positions.tolist()) == expected


def test_token_ids_beyond_a_byte_are_compared_as_numbers():
    text = [300, 1, 256, 2, 511, 65_536, 255, 16_777_216, 3]
    index = TokenIndex.of([text], 3)
    for end in range(1, len(text)):
        size, positions = index.match(text[:end])
        assert size == min(end, 3)
        assert positions.tolist() == [end]


def beginnings(rows, budget=8, branches=8, least=0.0):
    width = max(map(len, rows))
    padded = np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int32)
    return most_frequent(padded, budget, branches, least)


ROWS = [[1, 2, 3], [1, 2, 4], [1, 5, 6], [7, 8, 9], [1, 5]]


def test_a_line_follows_the_most_frequent_token_and_of_equal_ones_the_first():
    assert beginnings(ROWS, branches=1) == [(1,), (1, 2), (1, 2, 3)]
    assert beginnings(ROWS, branches=1, budget=2) == [(1,), (1, 2)]
    assert beginnings(ROWS, branches=1, least=0.4) == [(1,), (1, 2)]
    assert beginnings(ROWS, branches=1, least=0.9) == []
    assert beginnings([[5, 1], [5], [5]], branches=1) == [(5,), (5, 1)]  # an end is no continuation


def test_a_tree_has_the_most_frequent_beginnings():
    assert beginnings(ROWS, budget=4) == [(1,), (1, 2), (1, 5), (7,)]
    assert beginnings(ROWS, least=0.4) == [(1,), (1, 2), (1, 5)]
    assert set(beginnings(ROWS, budget=9)) == {
        row for r in ROWS for n in range(1, 4) if len(row := tuple(r[:n])) == n
    }


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12), st.integers(1, 9))
def test_a_tree_leaves_out_nothing_more_frequent(rows, budget):
    counts = Counter(tuple(row[:n]) for row in rows for n in range(1, len(row) + 1))
    found = beginnings(rows, budget)
    assert [counts[one] for one in found] == sorted(counts.values(), reverse=True)[:budget]
    assert all(one[:-1] in ((), *found[:n]) for n, one in enumerate(found))
