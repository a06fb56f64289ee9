"""Drafts and memory of the suffix drafter; the search itself is tested in `test_retrieval.py`."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import TargetInfo
from specdec_drafters.common.retrieval import GrowingText
from specdec_drafters.settings import SuffixConfig
from specdec_drafters.suffix import SuffixDrafter
from tests.drafters.brute_force_search import search
from tests.drafters.support import (
    assert_commits_and_rollbacks_equal_a_fresh_session,
    info_for,
    request_for,
    rows_of,
)
from tests.lossless import small_target

V = 50


def drafter_with(**settings):
    return SuffixDrafter(SuffixConfig(**settings), TargetInfo(V))


def propose(session, tokens, budget):
    return rows_of(session.propose(request_for([tokens], [budget])))[0]


def draft(tokens, budget, drafter=None, sources=None, **settings):
    drafter = drafter or drafter_with(**settings)
    return propose(drafter.open(info_for(1, V, sources)), tokens, budget)


def serve(drafter, *texts):
    """Have the drafter see requests, one after the other."""
    for text in texts:
        session = drafter.open(info_for(1, V))
        propose(session, text, 0)
        session.close()


def test_continues_the_longest_match_in_the_request():
    assert draft([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 1) == [7]
    assert draft([1, 2, 3, 4, 5, 1, 2], 8) == [3, 4]  # as many as match
    assert draft([1, 2, 3, 4, 5, 1, 2], 8, max_spec_factor=2.5) == [3, 4, 5, 1, 2]
    assert draft([1, 2, 3, 4, 5, 1, 2], 1) == [3]
    assert draft([1, 2, 3, 4, 5, 1, 2], 0) == []
    assert draft([1, 2, 3], 4) == draft([], 4) == []


def test_of_several_continuations_the_most_frequent_is_drafted():
    text = [1, 2, 7, 5, 1, 2, 7, 6, 1, 2, 8, 1, 2]
    assert draft(text, 1) == [7]
    assert draft(text, 2, min_token_prob=0.5) == [7]  # 7 follows two of three, 6 one of three
    assert draft(text, 2, min_token_prob=0.3) == [7, 6]  # of equally frequent ones, the latest
    assert draft(text, 2, min_token_prob=0.7) == []


def test_a_repetition_is_continued_past_its_own_end():
    assert draft([9, 5, 6, 5, 6, 5, 6], 4) == [5, 6, 5, 6]


def test_continues_matches_in_earlier_requests():
    drafter = drafter_with()
    serve(drafter, [1, 2, 3, 4], [9, 2, 3, 5], [8, 2, 3, 5])
    assert drafter.remembers
    assert draft([2, 3], 1, drafter) == [5]
    assert draft([1, 2, 3], 1, drafter) == [4]  # the longer match
    assert draft([4, 2, 3], 1, drafter) == [5]
    assert draft([4], 1, drafter) == []  # nothing follows the end of a request, not the next one
    # What occurs in the request counts like what occurs in others.
    assert draft([2, 3, 4, 2, 3, 4, 7, 2, 3], 1, drafter) == [4]


def test_a_session_keeps_the_requests_that_it_was_opened_with():
    drafter = drafter_with()
    serve(drafter, [1, 2, 3])
    session = drafter.open(info_for(1, V))
    serve(drafter, [1, 2, 4], [1, 2, 4])
    assert propose(session, [1, 2], 1) == [3]
    assert draft([1, 2], 1, drafter) == [4]


def test_prompt_and_output_are_learnt_when_the_session_is_closed():
    drafter, tokens = drafter_with(), [[1, 2], [5, 6]]
    session = drafter.open(info_for(2, V))
    session.propose(request_for(tokens, [3, 0]))
    tokens[0] += [3, 4]
    tokens[1] += [7]
    assert draft([1, 2], 2, drafter) == []
    session.close()
    assert draft([1, 2], 2, drafter) == [3, 4]
    assert draft([5, 6], 1, drafter) == [7]
    session.close()  # once is enough
    serve(drafter, [1, 2, 9], [1, 2, 9])
    assert draft([1, 2], 1, drafter) == [9]


def test_the_end_of_a_decoded_text_is_learnt():
    target = small_target("cpu")
    drafter = SuffixDrafter(SuffixConfig(), target.info())
    decoder = Decoder(target, drafter, gamma=2, temperature=0)
    tokens = list(decoder.generate([[2, 3, 5]], max_new_tokens=9, ignore_eos=True).tokens)
    whole = [2, 3, 5, *tokens]
    alone = SuffixDrafter(SuffixConfig(), target.info())
    serve(alone, whole)
    for end in range(1, len(whole)):
        assert draft([V, *whole[:end]], 1, drafter) == draft([V, *whole[:end]], 1, alone)


@pytest.mark.parametrize("most", [1, 2, 7, 40, 100])
def test_at_most_so_many_requests_are_kept_and_the_oldest_are_dropped_first(most):
    drafter = drafter_with(max_cached_requests=most)
    for number in range(100):
        serve(drafter, [100 + number, 1])
        if number % 9 == 0:
            known = [n for n in range(100) if draft([100 + n], 1, drafter) == [1]]
            assert known == list(range(number + 1))[-len(known) :]
            assert min(number + 1, most - most // 8) <= len(known) <= most


def test_without_a_cache_it_remembers_nothing():
    drafter = drafter_with(max_cached_requests=0)
    serve(drafter, [1, 2, 3])
    assert not drafter.remembers
    assert draft([1, 2], 2, drafter) == []


def test_the_source_is_searched():
    assert draft([0, 11, 12], 5, sources=[[11, 12, 13, 14]]) == [13, 14]
    assert draft([0, 11, 12], 5, sources=[[]]) == []


def test_threads_that_share_a_drafter_lose_no_request():
    drafter = drafter_with(max_cached_requests=400)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: serve(drafter, [100 + number, 1]), range(400)))
    assert all(draft([100 + number], 1, drafter) == [1] for number in range(400))


texts = st.lists(st.integers(0, 2), max_size=20)


@given(texts, texts, st.integers(1, 6), st.integers(0, 30))
def test_a_growing_text_finds_all_longest_matches_the_latest_first(tokens, more, longest, kept):
    text = GrowingText(longest=longest)
    text.match(tokens)
    text.rollback(min(kept, len(tokens)))
    tokens = tokens[:kept] + more
    size, positions = text.match(tokens)
    expected_size, expected = search([tokens], tokens, longest)
    assert size == expected_size
    assert positions.tolist() == [len(tokens) - len(rest) for rest in reversed(expected)]
    for position, row in zip(positions.tolist(), text.following(positions, 5).tolist(), strict=True):
        grown = list(tokens)
        for offset in range(5):
            grown.append(grown[position + offset])
        assert row == grown[len(tokens) :]


@given(data=st.data(), sources=st.none() | st.tuples(texts, texts), earlier=st.lists(texts, max_size=3))
def test_any_commits_and_rollbacks_equal_a_fresh_session(data, sources, earlier):
    drafter, info = drafter_with(max_match=4), info_for(2, V, sources)
    serve(drafter, *earlier)
    assert_commits_and_rollbacks_equal_a_fresh_session(drafter, info, data, texts)


def test_a_prompt_that_comes_again_needs_few_target_calls():
    """Greedy, so the same text again: the second time, all of it is known."""
    target = small_target("cpu")
    drafter = SuffixDrafter(SuffixConfig(max_match=8, max_spec_factor=8), target.info())
    decoder = Decoder(target, drafter, gamma=8, temperature=0)

    def generate():
        return decoder.generate([[2, 3, 5]], max_new_tokens=40, ignore_eos=True)

    first, second = generate(), generate()
    assert first.tokens == second.tokens
    assert second.metrics.target_calls <= 7 < first.metrics.target_calls
    drafter.reset()
    assert generate().metrics.target_calls == first.metrics.target_calls
