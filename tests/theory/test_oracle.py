"""The oracle for gamma: below every choice that could have been made, and reached by one of them."""

from __future__ import annotations

import itertools
import random

import pytest

from specdec_core.theory.oracle import fixed_seconds, oracle_seconds

JUMPS = (45.0, 50.0, 56.0, 80.0, 86.0, 92.0, 98.0, 100.0, 105.0)
FALLING = (45.0, 60.0, 50.0, 80.0, 70.0, 92.0, 60.0, 100.0, 75.0)
FLAT = (1.0,) * 9


def text(alpha: float, tokens: int, seed: int) -> list[bool]:
    """Whether the drafter guesses each token; it misses the last, so that all ways through the text end there."""
    generator = random.Random(seed)
    return [generator.random() < alpha for _ in range(tokens - 1)] + [False]


def replay(guessed: list[bool], gammas: itertools.cycle | list[int], seconds) -> tuple[list[int], float]:
    """Decode a text with a choice for each step; return what was accepted, and how long it took."""
    index, accepted, spent = 0, [], 0.0
    for gamma in gammas:
        if index >= len(guessed):
            break
        n = 0
        while n < gamma and guessed[index + n]:
            n += 1
        accepted.append(n)
        spent += seconds[gamma]
        index += n + 1
    return accepted, spent


@pytest.mark.parametrize("seconds", [JUMPS, FALLING, FLAT], ids=["jumps", "falling", "flat"])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.8, 0.97])
def test_no_choice_of_gammas_is_faster(alpha, seconds):
    for seed in range(5):
        guessed = text(alpha, 400, seed)
        trace, _ = replay(guessed, itertools.cycle([8]), seconds)
        bound = oracle_seconds(trace, seconds)
        for gamma in range(9):
            assert bound <= replay(guessed, itertools.cycle([gamma]), seconds)[1] + 1e-9
        generator = random.Random(seed)
        for _ in range(20):
            gammas = [generator.randrange(9) for _ in range(400)]
            assert bound <= replay(guessed, gammas, seconds)[1] + 1e-9


def test_it_is_reached_by_trying_every_way():
    """A block of five tokens: all sixteen ways to cut it."""
    seconds = (3.0, 4.0, 8.0, 9.0, 20.0)
    ways = [parts for n in range(1, 6) for parts in itertools.product(range(1, 6), repeat=n) if sum(parts) == 5]
    assert len(ways) == 16
    # Four of a longest draft of four: the block goes on, and the next step ends it.
    assert oracle_seconds([3], seconds) == min(9.0, 4.0 + 4.0)
    assert oracle_seconds([4], seconds) == min(sum(seconds[n - 1] for n in way) for way in ways) == 11.0


def test_a_draft_that_was_accepted_whole_does_not_end_a_block():
    seconds = (1.0, 1.0, 5.0)  # two tokens in a step of gamma 1 are the best of all
    assert oracle_seconds([2, 0], seconds) == 2.0  # four tokens, of which the last was not guessed
    assert oracle_seconds([2], seconds) + oracle_seconds([0], seconds) == 3.0


def test_fixed_gammas_on_a_text_that_is_known():
    for alpha, gamma in itertools.product((0.3, 0.9), range(9)):
        guessed = text(alpha, 500, seed=gamma)
        trace, _ = replay(guessed, itertools.cycle([8]), JUMPS)
        # The trace does not know whether bonus tokens were guessed, and takes them for it.
        known = [True] * len(guessed)
        index = 0
        for n in trace:
            index += n + 1
            if n < 8:
                known[index - 1] = False
        assert fixed_seconds(trace, gamma, JUMPS) == pytest.approx(
            replay(known, itertools.cycle([gamma]), JUMPS)[1]
        )
        assert oracle_seconds(trace, JUMPS) <= fixed_seconds(trace, gamma, JUMPS) + 1e-9


def test_the_limit_of_section_35():
    """Flat times and constant acceptance: 1 / (1 - alpha) tokens a call."""
    alpha, seconds = 0.75, (1.0,) * 200
    guessed = text(alpha, 100_000, seed=1)
    trace, _ = replay(guessed, itertools.cycle([199]), seconds)
    assert len(guessed) / oracle_seconds(trace, seconds) == pytest.approx(1 / (1 - alpha), rel=0.02)


def test_plain_decoding_only():
    assert oracle_seconds([0, 0, 0], (2.0,)) == fixed_seconds([0, 0, 0], 0, (2.0,)) == 6.0
    assert oracle_seconds([], (2.0, 3.0)) == fixed_seconds([], 1, (2.0, 3.0)) == 0.0


@pytest.mark.parametrize(
    ("accepted", "seconds", "named"),
    [
        ([1], (), "seconds"),
        ([1], (1.0, 0.0), "seconds"),
        ([2], (1.0, 1.0), "accepted"),
        ([-1], (1.0,), "accepted"),
    ],
)
def test_what_is_refused(accepted, seconds, named):
    with pytest.raises(ValueError, match=named):
        oracle_seconds(accepted, seconds)


def test_a_gamma_that_is_refused():
    with pytest.raises(ValueError, match="gamma"):
        fixed_seconds([1], 2, (1.0, 1.0))
