"""Drafts of the prompt-copy drafter, against a search that tries every position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specdec_core.interface import TargetInfo
from specdec_drafters.prompt_copy import PromptCopyDrafter
from specdec_drafters.settings import PromptCopyConfig
from tests.drafters.brute_force_search import search
from tests.drafters.support import (
    assert_commits_and_rollbacks_equal_a_fresh_session,
    info_for,
    request_for,
    rows_of,
)

V = 50


def drafter_with(**settings):
    return PromptCopyDrafter(PromptCopyConfig(**settings), TargetInfo(V))


def draft(tokens, budget, sources=None, **settings):
    session = drafter_with(**settings).open(info_for(1, V, sources))
    return rows_of(session.propose(request_for([tokens], [budget])))[0]


def test_a_copy_is_as_long_as_budget_and_match_allow():
    tokens = [1, 2, 3, 4, 5, 1, 2]
    assert draft(tokens, 0) == []
    assert draft(tokens, 2) == [3, 4]
    assert draft(tokens, 8) == [3, 4, 5, 1, 2, 3]
    assert draft(tokens, 8, max_spec_factor=1.5) == [3, 4, 5]


def test_the_source_is_copied_from():
    source = [11, 12, 13, 14]
    assert draft([0, 11, 12], 5, [source]) == [13, 14]  # nothing follows the source's end
    # The longer match wins, whichever of the two it is in; of equal ones the output's.
    assert draft([11, 12, 21, 9, 11, 12], 1, [source]) == [21]
    assert draft([11, 12, 21, 9, 10, 11, 12], 1, [[10, 11, 12, 13]]) == [13]


texts = st.lists(st.integers(0, 2), max_size=20)


@pytest.mark.parametrize("prefer", ["recent", "frequent"])
@given(data=st.data(), sources=st.none() | st.tuples(texts, texts))
def test_any_commits_and_rollbacks_equal_a_fresh_session(prefer, data, sources):
    drafter, info = drafter_with(prefer=prefer, min_match=1, max_match=4), info_for(2, V, sources)
    assert_commits_and_rollbacks_equal_a_fresh_session(drafter, info, data, texts)


def test_matches_longer_than_the_longest_count_as_equal():
    tokens = [1, 2, 3, 4, 7, 9, 2, 3, 4, 8, 1, 2, 3, 4]
    assert draft(tokens, 1) == [7]
    assert draft(tokens, 1, max_match=3) == [8]
    tokens = [1, 3, 4, 7, 3, 4, 8, 3, 4, 8, 1, 3, 4]
    assert draft(tokens, 1, prefer="frequent", max_match=2) == [8]
    assert draft(tokens, 1, prefer="frequent", max_match=3) == [7]
    # The row itself comes before a source that agrees in more than is compared.
    assert draft([3, 4, 8, 1, 3, 4], 1, [[1, 3, 4, 7]], max_match=2) == [8]
    assert draft([3, 4, 8, 1, 3, 4], 1, [[1, 3, 4, 7]], max_match=3) == [7]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_match": 0}, "greater than or equal to 1"),
        ({"min_match": 5, "max_match": 3}, r"min_match \(5\) must not exceed max_match \(3\)"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        PromptCopyConfig(**settings)


def tree(tokens, budget, depth, sources=None, **settings):
    request = request_for([tokens], [budget])
    request.tree, request.depth = object(), (depth,)
    proposal = drafter_with(**settings).open(info_for(1, V, sources)).propose(request)
    return proposal.tokens[0].tolist(), proposal.parents[0].tolist()


def test_a_tree_has_as_many_copies_as_fill_it():
    tokens = [1, 2, 7, 8, 1, 2, 5, 6, 9, 1, 2]
    assert tree(tokens, 6, 3) == ([5, 6, 9, 7, 8, 1], [-1, 0, 1, -1, 3, 4])
    assert tree(tokens, 5, 3) == ([5, 6, 9, 7, 8], [-1, 0, 1, -1, 3])
    assert tree(tokens, 3, 3) == ([5, 6, 9], [-1, 0, 1])
    assert tree(tokens, 6, 3, max_spec_factor=1) == ([5, 6, 7, 8], [-1, 0, -1, 2])
    assert tree(tokens, 0, 3) == ([], [])
    assert tree([1, 2, 3], 4, 2) == ([], [])
    assert tree([*tokens[:4], *tokens], 3, 2, prefer="frequent") == ([7, 8, 5], [-1, 0, -1])


def test_a_tree_copies_from_the_source_as_well():
    source = [11, 12, 13, 14]
    assert tree([11, 12, 21, 9, 11, 12], 4, 2, [source]) == ([21, 9, 13, 14], [-1, 0, -1, 2])
    assert tree([11, 12, 21, 9, 10, 11, 12], 4, 2, [[10, 11, 12, 13]]) == ([13, 21, 9], [-1, -1, 1])


def copied(tokens, source, prefer, longest, shortest, factor):
    """Search by trying every position: the longest match in the row or its source, and again after each token."""
    draft, searched, count = [], (tokens, source), 5
    while len(draft) < count:
        found = [(search([text], [*tokens, *draft], longest), text) for text in searched]
        (size, after), text = max(found, key=lambda one: one[0][0])
        if size < shortest:
            break
        count = count if draft else min(count, int(size * factor))
        if prefer == "recent":
            rest = list(after[-1])
            period = len(rest)
            while text is tokens and len(rest) < count:
                rest.append(rest[-period])
            return rest[:count]
        followers = [rest[0] for rest in reversed(after)]
        draft.append(max(followers, key=followers.count))
        searched = (text,)
    return draft


@pytest.mark.parametrize("prefer", ["recent", "frequent"])
@given(texts, texts, st.integers(2, 5), st.integers(1, 2), st.floats(1, 4))
def test_a_copy_is_what_a_search_of_every_position_finds(prefer, tokens, source, longest, shortest, factor):
    settings = {"prefer": prefer, "max_match": longest, "min_match": shortest, "max_spec_factor": factor}
    assert draft(tokens, 5, [source], **settings) == copied(tokens, source, prefer, longest, shortest, factor)
