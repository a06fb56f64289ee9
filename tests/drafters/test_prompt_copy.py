"""The prompt-copy drafter against a search that is slow and plain."""

from __future__ import annotations

import random
import time

import pytest
from pydantic import ValidationError

from specdec_core.border import PointMass, TargetInfo
from specdec_drafters.configs import PromptCopyConfig
from specdec_drafters.prompt_copy import NgramIndex, PromptCopyDrafter
from tests.drafters.support import assert_as_fresh, commit, info_for, request_for, rows_of

V = 50


def drafter_with(**settings):
    return PromptCopyDrafter(PromptCopyConfig(**settings), TargetInfo(V))


def draft(tokens, budget, sources=None, **settings):
    session = drafter_with(**settings).open(info_for(1, V, sources))
    return rows_of(session.propose(request_for([tokens], [budget])))[0]


def plain_search(tokens, shortest, longest):
    """Try every length and every place, longest and latest first."""
    for size in range(min(longest, len(tokens)), shortest - 1, -1):
        for position in range(len(tokens) - 1, size - 1, -1):
            if tokens[position - size : position] == tokens[-size:]:
                return size, position
    return 0, 0


def test_copies_what_followed_the_last_time():
    assert draft([1, 2, 3, 4, 9, 1, 2], 3) == [3, 4, 9]


def test_the_longest_match_wins_over_a_later_one():
    #        match of 3          match of 2
    assert draft([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 1) == [7]


def test_of_equal_matches_the_latest_wins():
    assert draft([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_matches_shorter_than_asked_draft_nothing():
    assert draft([1, 2, 3, 1], 4) == []
    assert draft([1, 2, 3, 1], 2, min_match=1) == [2, 3]


def test_a_repetition_is_continued_past_its_own_end():
    assert draft([5, 6, 5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


@pytest.mark.parametrize("tokens", [[], [3], [3, 3], [1, 2, 3]])
def test_nothing_to_copy(tokens):
    assert draft(tokens, 4) == []


def test_budget_and_max_tokens_are_kept():
    tokens = [1, 2, 3, 4, 5, 1, 2]
    assert draft(tokens, 0) == []
    assert draft(tokens, 2) == [3, 4]
    assert draft(tokens, 5, max_tokens=1) == [3]


def test_the_source_is_copied_from():
    source = [11, 12, 13, 14]
    assert draft([0, 11, 12], 5, [source]) == [13, 14]  # nothing follows the source's end
    # The longer match wins, whichever of the two it is in; of equal ones the output's.
    assert draft([11, 12, 21, 9, 11, 12], 1, [source]) == [21]
    assert draft([11, 12, 21, 9, 10, 11, 12], 1, [[10, 11, 12, 13]]) == [13]


def test_q_is_a_point_mass_and_rows_are_independent():
    tokens = [[1, 2, 3, 1, 2], [4], [7, 8, 9, 7, 8]]
    session = drafter_with().open(info_for(3, V))
    proposal = session.propose(request_for(tokens, [2, 2, 1]))
    assert isinstance(proposal.q, PointMass)
    assert rows_of(proposal) == [[3, 1], [], [9]]


@pytest.mark.parametrize("seed", range(5))
def test_index_equals_the_plain_search_while_the_sequence_grows(seed):
    generator = random.Random(seed)
    index, tokens = NgramIndex(2, 5), []
    for _ in range(60):
        tokens.extend(generator.choices(range(3), k=generator.randint(1, 4)))
        index.extend(tokens)
        assert index.search(tokens) == plain_search(tokens, 2, 5)


def test_state_after_commits_equals_a_fresh_session():
    drafter, info = drafter_with(min_match=1), info_for(2, V)
    tokens = [[1, 2, 3, 1, 2], [7, 8, 7]]
    session = drafter.open(info)
    for kept in ((2, 1), (0, 0), (1, 2)):
        proposal = session.propose(request_for(tokens, [3, 2]))
        commit(session, tokens, proposal, [min(k, n) for k, n in zip(kept, proposal.lengths, strict=True)])
        assert_as_fresh(drafter, info, session, tokens)


def test_a_long_context_costs_no_more_a_step_than_a_short_one():
    tokens = [random.Random(0).choices(range(V), k=8000)]
    session = drafter_with().open(info_for(1, V))
    session.propose(request_for(tokens, [4]))  # takes the prompt in
    begin = time.perf_counter()
    for _ in range(200):
        tokens[0].append(3)
        session.propose(request_for(tokens, [4]))
    # A search over all 8,000 tokens takes about a millisecond; the bound leaves a slow machine room.
    assert (time.perf_counter() - begin) / 200 < 5e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_match": 0}, "greater than or equal to 1"),
        ({"min_match": 5, "max_match": 3}, r"min_match \(5\) must not exceed max_match \(3\)"),
        ({"max_tokens": 0}, "greater than or equal to 1"),
        ({"longest": 3}, "Extra inputs"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        PromptCopyConfig(**settings)
