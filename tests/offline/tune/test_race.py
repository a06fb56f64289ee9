"""A race over texts with given seconds: who is asked, who is stopped, and what is said about it."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_core.interface.errors import ConfigError
from specdec_core.offline.tune.race import RaceSettings, race
from tests.offline.tune.support import Seen

PROMPTS, SAMPLES = 24, 2
OF_TEXT = [prompt for prompt in range(PROMPTS) for _ in range(SAMPLES)]


class Given:
    """Seconds of candidates: a rate times the tokens of a text, with noise; remembers what was asked for."""

    def __init__(self, rates, broken=(), noise=0.02):
        generator = np.random.default_rng(0)
        self.tokens = generator.integers(20, 60, size=len(OF_TEXT))
        self.rates, self.broken, self.asked = rates, broken, []
        self.noise = {name: generator.normal(1, noise, size=len(OF_TEXT)) for name in rates}

    def __call__(self, names, texts):
        self.asked.append((tuple(names), tuple(texts)))
        return {name: self.reason if name in self.broken else self.of(name)[list(texts)] for name in names}

    reason = "its lenience may be below 1"

    def of(self, name):
        return self.rates[name] * self.tokens * self.noise[name]


def run(given, **settings):
    return race(list(given.rates), OF_TEXT, given.tokens, given, RaceSettings(**settings), Seen())


def test_only_survivors_see_more_texts_and_each_text_once():
    given = Given({"slow": 2.0, "good": 1.0, "close": 1.005})
    found = run(given)
    assert found.prompts == (8, 16, 24)
    asked = [names for names, _ in given.asked]
    assert asked == [("slow", "good", "close"), ("good", "close"), ("good", "close")]
    texts = [text for _, some in given.asked for text in some]
    assert sorted(texts) == list(range(len(OF_TEXT)))
    assert [len(some) for _, some in given.asked] == [16, 16, 16]


def test_what_became_of_each_is_told():
    given = Given({"slow": 2.0, "good": 1.0, "close": 1.005, "broken": 0.1}, broken=("broken",))
    slow, good, close, broken = run(given).tried
    assert (slow.rounds, slow.texts, slow.outcome, slow.reason) == (1, 16, "stopped", "slower than good")
    assert slow.slower.low > 1.02
    assert slow.slower.value == pytest.approx(2, rel=0.05)
    assert (good.rounds, good.texts, good.outcome, good.reason) == (3, 48, "finalist", None)
    assert (close.rounds, close.outcome) == (3, "finalist")
    assert (broken.rounds, broken.speed, broken.outcome, broken.reason) == (0, None, "refused", given.reason)


def test_the_speed_is_tokens_over_seconds_of_the_texts_seen():
    given = Given({"good": 0.01, "close": 0.0101})
    good = run(given).tried[0]
    assert good.speed.value == pytest.approx(given.tokens.sum() / given.of("good").sum())
    assert good.speed.low < 100 < good.speed.high


def test_finalists_are_the_fastest_of_those_that_are_left():
    given = Given({f"c{n}": 1 + 0.001 * n for n in range(6)}, noise=0)
    found = run(given, finalists=2)
    assert found.finalists == ("c0", "c1")
    assert (found.tried[5].rounds, found.tried[5].outcome) == (3, "beyond")
    assert found.tried[5].reason == "not among the 2 fastest of those left"


def test_of_candidates_that_take_the_same_time_one_is_a_finalist():
    given = Given({"a": 1.0, "b": 1.0, "c": 1.001}, noise=0)
    found = run(given)
    assert found.finalists == ("a", "c")
    assert (found.tried[1].outcome, found.tried[1].reason) == ("beyond", "as fast as a in every text")


def test_the_race_is_over_when_one_is_left():
    given = Given({"good": 1.0, "slow": 2.0})
    found = run(given)
    assert (found.prompts, found.texts, len(given.asked)) == ((8,), 16, 1)


def test_a_margin_keeps_what_is_a_little_slower_and_none_stops_it():
    rates = {"good": 1.0, "close": 1.01}
    assert len(run(Given(rates, noise=0.0001), margin=0.02).finalists) == 2
    assert run(Given(rates, noise=0.0001), margin=0).finalists == ("good",)


def test_prompts_come_in_a_random_order_that_the_seed_fixes():
    orders = [Given({"a": 1.0, "b": 1.0}) for _ in range(3)]
    for given, seed in zip(orders, (0, 0, 1), strict=True):
        run(given, seed=seed)
    assert orders[0].asked == orders[1].asked != orders[2].asked


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ConfigError, match=r"no candidate can be replayed\.\na: its lenience"):
        run(Given({"a": 1.0}, broken=("a",)))
    with pytest.raises(ConfigError, match="no texts"):
        race(["a"], [], [], Given({"a": 1.0}), RaceSettings(), Seen())
