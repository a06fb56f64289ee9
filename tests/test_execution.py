"""Speculative execution: the outcome has the distribution of the slow path, and the slow calls overlap."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random

import pytest

from specdec_core.execution import expected_speedup, speculate, speculate_async
from specdec_core.interface.errors import NumericsError

P = {"a": 0.5, "b": 0.25, "c": 0.25}
QS = {
    "the same": P,
    "another order": {"c": 0.25, "a": 0.5, "b": 0.25},
    "too sure": {"a": 1.0},
    "too broad": {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25},
    "apart": {"d": 0.5, "e": 0.5},
    "b and d": {"b": 0.5, "d": 0.5},
    "with a zero": {"a": 0.0, "b": 0.5, "c": 0.5},
}
GRID = 12
"""Probabilities, ratios and residuals above are multiples of 1/12, so the midpoints of this grid enumerate all."""


class Inline(Executor):
    """Runs a call when it is submitted."""

    def submit(self, call, /, *arguments, **keywords):
        future = Future()
        try:
            future.set_result(call(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future


class Given(Random):
    """Returns given numbers."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = iter(numbers)

    def random(self) -> float:
        return next(self.numbers)


def run_inline(p, q, random):
    return speculate(lambda _: p, str.upper, None, guess=lambda _: q, executor=Inline(), random=random)


def run_async(p, q, random):
    async def soon(value):
        await asyncio.sleep(0)
        return value

    return asyncio.run(
        speculate_async(lambda _: soon(p), lambda y: soon(y.upper()), None, guess=lambda _: soon(q), random=random)
    )


def midpoints() -> Iterator[tuple[float, ...]]:
    return itertools.product([(n + 0.5) / GRID for n in range(GRID)], repeat=3)


@pytest.mark.parametrize("q", QS.values(), ids=QS)
def test_every_outcome_has_the_probability_that_f_gives_it(q):
    found: Counter[str] = Counter()
    accepted = 0
    for numbers in midpoints():
        result = run_inline(P, q, Given(*numbers))
        assert result.value == result.outcome.upper()
        found[result.outcome] += 1
        accepted += result.accepted
    assert {outcome: Fraction(count, GRID**3) for outcome, count in found.items()} == P
    assert Fraction(accepted, GRID**3) == sum(min(weight, q.get(outcome, 0)) for outcome, weight in P.items())


@pytest.mark.parametrize("q", QS.values(), ids=QS)
def test_coroutines_decide_as_calls_do(q):
    for seed in range(20):
        inline, coroutine = run_inline(P, q, Random(seed)), run_async(P, q, Random(seed))
        assert (coroutine.outcome, coroutine.value, coroutine.accepted) == (
            inline.outcome,
            inline.value,
            inline.accepted,
        )


def test_an_outcome_of_probability_zero_is_never_drawn():
    for number in (0.0, 1 - 2**-53):
        assert run_inline(P, QS["apart"], Given(number, 0.0, number)).outcome in P
        assert run_inline({"a": 0.0, "b": 1.0}, {"a": 1.0}, Given(number, 0.0, number)).outcome == "b"


def test_rounding_leaves_no_residual_but_an_outcome():
    p = {"a": 1 - 4e-7}
    assert run_inline(p, {"a": 1.0}, Given(0.5, 1 - 2**-53, 0.5)).outcome == "a"


def in_threads(**given):
    with ThreadPoolExecutor(2) as executor:
        return speculate(x=None, executor=executor, random=Random(0), **given)


def test_f_and_g_run_side_by_side():
    both = threading.Barrier(2, timeout=10)

    def f(_):
        both.wait()
        return {"a": 1.0}

    def g(outcome):
        both.wait()  # passes only while f is waiting too
        return outcome

    result = in_threads(f=f, g=g, guess=lambda _: {"a": 1.0})
    assert result.accepted
    assert result.value == "a"
    assert [span.name for span in result.spans] == ["guess", "f", "g(guess)"]


def test_a_rejected_guess_is_run_again_and_its_error_dropped():
    def g(outcome):
        if outcome == "wrong":
            raise RuntimeError("no such tool")
        return outcome

    result = in_threads(f=lambda _: {"right": 1.0}, g=g, guess=lambda _: {"wrong": 1.0})
    assert (result.outcome, result.value, result.guessed, result.accepted) == ("right", "right", "wrong", False)
    assert [span.name for span in result.spans] == ["guess", "f", "g(guess)", "g"]
    assert "not needed" in str(result)


def test_an_error_of_g_on_the_outcome_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_threads(f=lambda _: {1: 1.0}, g=lambda y: y / 0, guess=lambda _: {1: 1.0})


def fair(_: object) -> dict[int, float]:
    return dict.fromkeys(range(8), 1 / 8)


def square(n: int) -> int:
    return n * n


def test_in_processes():
    with ProcessPoolExecutor(2) as executor:
        result = speculate(fair, square, None, guess=fair, executor=executor, random=Random(3))
    assert result.value == result.outcome**2
    assert result.accepted


def test_a_rejected_coroutine_is_canceled():
    canceled = []

    async def f(_):
        await asyncio.sleep(0)
        return {"right": 1.0}

    async def g(outcome):
        try:
            await asyncio.sleep(60 if outcome == "wrong" else 0)
        except asyncio.CancelledError:
            canceled.append(outcome)
            raise
        return outcome

    async def guess(_):
        return {"wrong": 1.0}

    result = asyncio.run(speculate_async(f, g, None, guess=guess, random=Random(0)))
    assert (result.value, canceled) == ("right", ["wrong"])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([0.5, 0.5], "f returned list; it must return a mapping"),
        ({"a": 0.5}, "with sum 0.5"),
        ({"a": 1.5, "b": -0.5}, "the smallest -0.5"),
        ({"a": float("nan")}, "sum nan"),
        ({}, "0 values"),
    ],
)
def test_what_is_no_distribution_is_refused(weights, said):
    with pytest.raises(NumericsError, match=said):
        run_inline(weights, P, Random(0))
    with pytest.raises(NumericsError, match=said.replace("f returned", "guess returned")):
        run_inline(P, weights, Random(0))


def test_the_expected_speedup():
    assert expected_speedup(1, 2, 2, 0) == 2
    assert expected_speedup(0, 2, 2, 1) == 0.8
    assert expected_speedup(0.5, 3, 1, 0) == pytest.approx(4 / 3.5)


def test_draws_do_not_depend_on_the_executor():
    run = partial(speculate, fair, square, None, guess=fair)
    with ThreadPoolExecutor(2) as threads:
        found = [[run(executor=one, random=Random(n)).outcome for n in range(9)] for one in (Inline(), threads)]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent", "scattering"])
def test_the_examples_run(name):
    path = Path(__file__).parents[1] / "examples" / "execution" / f"{name}.py"
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=True)
    assert "guesses kept" in done.stdout
    assert "g(guess) |" in done.stdout
