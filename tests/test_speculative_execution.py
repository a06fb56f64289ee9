"""The example of speculative execution: its outcome has the distribution of the slow function."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.docs.pages import load

example = load(Path(__file__).parents[1] / "examples" / "speculative_execution.py")
P = {"a": 0.5, "b": 0.25, "c": 0.25}
QS = [
    P,
    {"a": 1.0},
    {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25},
    {"d": 0.5, "e": 0.5},
    {"a": 0.0, "b": 0.5, "c": 0.5},
]
GRID = 12
"""Probabilities, ratios and residuals above are multiples of 1/12, so the midpoints of this grid enumerate all."""


class Given(Random):
    def __init__(self, *numbers):
        super().__init__(0)
        self.numbers = iter(numbers)

    def random(self):
        return next(self.numbers)


@pytest.mark.parametrize("q", QS)
def test_every_outcome_has_the_probability_that_f_gives_it(q):
    async def soon(value):
        return value

    async def outcomes():
        found = Counter()
        for numbers in itertools.product([(n + 0.5) / GRID for n in range(GRID)], repeat=3):
            outcome, value, _ = await example.speculate(
                lambda _: soon(P), lambda y: soon(y.upper()), "", lambda _: soon(q), Given(*numbers)
            )
            assert value == outcome.upper()
            found[outcome] += 1
        return found

    assert asyncio.run(outcomes()) == {outcome: weight * GRID**3 for outcome, weight in P.items()}
