"""The suffix automata against searches that try every position, on sequences that grow and shrink."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_drafters.prompt_copy.suffix_automaton import FrequentContinuations, LatestOccurrence

KINDS = (LatestOccurrence, FrequentContinuations)
# Two or three letters make for many repetitions, so for many states that are split.
letters = st.integers(2, 3).flatmap(lambda v: st.lists(st.integers(0, v - 1), max_size=60))
longest = st.integers(1, 9)
# A negative number takes so many tokens back, a list adds its tokens.
edits = st.lists(st.one_of(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(-12, -1)), max_size=25)


def positions_after(tokens, part):
    """Return the positions after the occurrences where `part` occurs with a token following, earliest first."""
    size = len(part)
    return [end for end in range(size, len(tokens)) if tokens[end - size : end] == part]


def search(tokens, other, longest, min_match=1):
    """Return (size, positions) of the longest end of `other` that a token follows in `tokens`."""
    for size in range(min(longest, len(other)), min_match - 1, -1):
        found = positions_after(tokens, other[-size:])
        if found:
            return size, found
    return 0, []


def copy(tokens, position, count):
    """Copy one token at a time from a position on; what was copied can be copied again."""
    grown = list(tokens)
    for offset in range(count):
        grown.append(grown[position + offset])
    return grown[len(tokens) :]


def continue_frequent(tokens, other, longest, min_match, count):
    """Search anew for each token and count what followed."""
    copied = []
    while len(copied) < count:
        size, found = search(tokens, other + copied, longest, min_match)
        if not size:
            break
        often = Counter(tokens[position] for position in found)
        most = max(often.values())
        copied.append(next(tokens[p] for p in reversed(found) if often[tokens[p]] == most))
    return copied


def contents(automaton):
    """Return all that an automaton holds but the log."""
    names = ("_length", "_lengths", "_links", "_next", "_notes", "_end", "_window")
    return {name: getattr(automaton, name) for name in names}


def grown(kind, tokens, longest, undo=0):
    automaton = kind(longest, undo)
    automaton.extend(tokens)
    return automaton


@given(letters, longest)
@example([0] * 30, 4)  # the window itself is split, and links into a chain as long as `longest`
@example([1] + [0] * 12 + [1] + [0] * 12, 3)
@example([0, 1] * 12 + [0], 5)
def test_the_latest_occurrence_is_found_after_every_token(tokens, longest):
    automaton = LatestOccurrence(longest)
    for length in range(1, len(tokens) + 1):
        text = tokens[:length]
        automaton.extend(text)
        assert len(automaton) == length
        size, state = automaton.match()
        expected, found = search(text, text, longest)
        assert size == expected
        if size:
            assert automaton.latest(state) == found[-1]
            assert automaton.continuation(text, (size, state), 9) == copy(text, found[-1], 9)


@given(letters, longest, st.integers(1, 3))
@example([0] * 30, 4, 1)
@example([1] + [0] * 12 + [1] + [0] * 12, 3, 1)
@example([0, 1] * 12 + [0], 5, 2)
def test_the_most_frequent_continuation_is_found_after_every_token(tokens, longest, min_match):
    automaton = FrequentContinuations(longest, min_match=min_match)
    for length in range(1, len(tokens) + 1):
        text = tokens[:length]
        automaton.extend(text)
        size, state = automaton.match()
        assert size == search(text, text, longest)[0]
        expected = continue_frequent(text, text, longest, min_match, 7)
        assert automaton.continuation(text, (size, state), 7) == expected


@given(letters, letters, longest)
def test_the_end_of_another_sequence_is_located(tokens, other, longest):
    size, found = search(tokens, other, longest)
    latest = LatestOccurrence(longest, endless=False)
    latest.extend(tokens)
    located = latest.locate(other)
    assert located[0] == size
    if size:
        assert latest.latest(located[1]) == found[-1]
        assert latest.continuation(tokens, located, 5) == tokens[found[-1] :][:5]
    frequent = grown(FrequentContinuations, tokens, longest)
    located = frequent.locate(other)
    assert located[0] == size
    assert frequent.continuation(tokens, located, 5) == continue_frequent(tokens, other, longest, 1, 5)


def followers(tokens, other, longest, shortest, prefer):
    """Return the tokens that followed an end of `other`: of the longest match first, then as `prefer` says."""
    size, _ = search(tokens, other, longest, shortest)
    found = []
    for matched in range(size, shortest - 1, -1):
        after = positions_after(tokens, other[len(other) - matched :])
        often = Counter(tokens[position] for position in after)
        latest = {tokens[position]: position for position in after}
        if prefer is LatestOccurrence:
            ranked = sorted(often, key=lambda token: -latest[token])
        else:
            first = max(often, key=lambda token: (often[token], latest[token]))
            ranked = [first, *sorted(often, key=lambda token: (-often[token], token))]
        found += [token for token in dict.fromkeys(ranked) if token not in found]
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(letters, st.integers(1, 3), st.integers(1, 4))
def test_several_continuations_begin_with_what_followed_in_order(kind, tokens, shortest, most):
    longest = 70  # so that a match and the token after it are compared whole
    automaton = grown(kind, tokens, longest)
    match = automaton.match()
    expected = followers(tokens, tokens, longest, shortest, kind)[:most]
    found = automaton.continuations(tokens, match, 5, most, shortest)
    assert [copy[0] for copy in found] == expected
    if expected:
        assert found[0] == automaton.continuation(tokens, match, 5)


@pytest.mark.parametrize("kind", KINDS)
@given(letters, letters, longest, st.integers(1, 3))
@example([0] * 12 + [1, 0, 0, 2], [0, 0], 2, 1)
@example([0, 1, 0], [0], 1, 1)
def test_several_continuations_are_those_that_occurred(kind, tokens, other, longest, shortest):
    automaton = grown(kind, tokens, longest)
    match = automaton.locate(other)
    found = automaton.continuations(tokens, match, 4, 3, shortest)
    wanted = followers(tokens, other, longest, shortest, kind)
    assert len(found) == min(3, len(wanted))
    assert {one[0] for one in found} <= set(wanted)
    assert all(len(one) <= 4 for one in found)
    if kind is LatestOccurrence:
        for token, *rest in found:
            there = [position for position, other in enumerate(tokens[:-1]) if other == token]
            # What is copied past the end is the sequence again, with or without the first token of the copy.
            copies = [copy(tokens, position + 1, len(rest)) for position in there]
            copies += [copy(tokens, position, 1 + len(rest))[1:] for position in there]
            assert not rest or rest in copies or token == tokens[-1]


def test_a_second_continuation_goes_on_where_it_occurred():
    text = [1, 2, 7, 8, 1, 2, 5, 6, 9, 2, 3, 4, 1, 2]
    latest = grown(LatestOccurrence, text, 4)
    assert latest.continuations(text, latest.match(), 3, 4, 2) == [[5, 6, 9], [7, 8, 1]]
    assert latest.continuations(text, latest.match(), 2, 4, 1) == [[5, 6], [7, 8], [3, 4]]
    assert latest.continuations(text, latest.match(), 2, 2, 1) == [[5, 6], [7, 8]]
    often = grown(FrequentContinuations, [*text[:4], *text], 4)
    assert often.continuations([], often.match(), 3, 4, 2) == [[7, 8, 1], [5, 6, 9]]
    assert often.continuations([], often.match(), 2, 4, 1) == [[7, 8], [5, 6], [3, 4]]


def test_more_frequent_wins_over_later_and_later_over_earlier():
    text = [5, 1, 7, 5, 1, 7, 5, 1, 8, 5, 1]
    automaton = grown(FrequentContinuations, text, 2)
    assert automaton.continuation(text, automaton.match(), 1) == [7]
    text = [5, 1, 7, 5, 1, 8, 5, 1]
    automaton = grown(FrequentContinuations, text, 2)
    assert automaton.continuation(text, automaton.match(), 1) == [8]


@pytest.mark.parametrize("kind", KINDS)
@given(edits=edits, longest=longest, undo=st.sampled_from([0, 1, 5, 100]))
def test_any_growing_and_shrinking_equals_a_fresh_automaton(kind, edits, longest, undo):
    automaton, tokens = kind(longest, undo), []
    for edit in edits:
        if isinstance(edit, list):
            tokens.extend(edit)
            automaton.extend(tokens)
        else:
            del tokens[edit:]
            automaton.rollback(len(tokens))
            if len(automaton) != len(tokens):  # it went beyond the log
                assert len(automaton) == 0
                automaton.extend(tokens)
        assert contents(automaton) == contents(grown(kind, tokens, longest))


@pytest.mark.parametrize("kind", KINDS)
def test_within_the_log_nothing_is_read_again_and_beyond_it_all_is(kind):
    tokens = [0, 1, 0, 0, 1, 1, 0, 1]
    automaton = grown(kind, tokens, 3, undo=4)
    automaton.rollback(4)
    assert len(automaton) == 4
    automaton.rollback(6)  # nothing is forgotten that it does not hold
    assert len(automaton) == 4
    automaton.extend([*tokens[:4], 2, 2, 2, 2])  # other tokens, to the same length
    automaton.rollback(3)
    assert len(automaton) == 0
    automaton.extend(tokens)
    assert contents(automaton) == contents(grown(kind, tokens, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_sequence_matches_nothing(kind):
    automaton = kind(4)
    assert automaton.match()[0] == 0
    assert automaton.locate([1, 2])[0] == 0
    automaton.extend([1])
    assert automaton.match()[0] == 0
    assert automaton.locate([1])[0] == 0
    assert automaton.locate([])[0] == 0


@pytest.mark.parametrize("kind", KINDS)
@given(tokens=letters)
def test_states_are_linear_in_the_sequence(kind, tokens):
    automaton = grown(kind, tokens, 5)
    assert len(automaton._lengths) <= max(2 * len(tokens), 2)
