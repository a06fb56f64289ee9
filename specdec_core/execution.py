"""Speculative execution of any two slow functions, of which the first decides at random what the second works on.

`f(x)` returns a distribution, an outcome is drawn from it, and `g(outcome)` is what you want. g waits for f. With
a cheap approximation of f, g starts on a guess while f still runs. Speculative sampling then keeps the guess or
replaces it, so that the outcome has the distribution that f returned, whatever the approximation was.

    from concurrent.futures import ThreadPoolExecutor
    from random import Random
    from specdec_core.execution import speculate

    with ThreadPoolExecutor() as executor:
        result = speculate(policy, call_tool, state, guess=small_policy, executor=executor, random=Random(0))

Nothing here knows of models or tokens, and nothing imports torch.

References:
    Leviathan et al. 2023, sections 2.3 and 6 (arXiv 2211.17192).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from specdec_core.interface.errors import NumericsError

__all__ = ["Span", "Speculation", "expected_speedup", "speculate", "speculate_async"]

X = TypeVar("X")
Y = TypeVar("Y", bound=Hashable)
Z = TypeVar("Z")
T = TypeVar("T")

Distribution: TypeAlias = Mapping[Y, float]
"""The probability of each outcome. Those that are not listed have none."""

_TOLERANCE = 1e-6
_WIDTH = 50


@dataclass(frozen=True)
class Span:
    """When a call ran.

    Attributes:
        name: `guess`, `f`, `g(guess)` or `g`.
        begin: Seconds since `speculate` was called.
        end: The same; None for a call whose result was not waited for.
    """

    name: str
    begin: float
    end: float | None


@dataclass(frozen=True)
class Speculation(Generic[Y, Z]):
    """The result of `speculate`. Printed, it is a timeline of the calls.

    Attributes:
        outcome: What was drawn; its distribution is the one that f returned.
        value: `g(outcome)`.
        guessed: The outcome that g started with.
        accepted: Whether the guess was kept.
        spans: When each call ran.
    """

    outcome: Y
    value: Z
    guessed: Y
    accepted: bool
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """Wall time until the value was there."""
        return max(span.end for span in self.spans if span.end is not None)

    def __str__(self) -> str:
        scale = _WIDTH / max(self.seconds, 1e-9)
        return "\n".join(_bar(span, scale, self.seconds) for span in self.spans)


def _bar(span: Span, scale: float, whole: float) -> str:
    begin = round(span.begin * scale)
    if span.end is None:
        return f"{span.name:<9}|{' ' * begin}{'.' * (_WIDTH - begin)}| from {span.begin:.3f} s, not needed"
    end = max(begin + 1, round(span.end * scale))
    bar = f"{' ' * begin}{'#' * (end - begin)}".ljust(_WIDTH)[:_WIDTH]
    return f"{span.name:<9}|{bar}| {span.begin:.3f} s to {min(span.end, whole):.3f} s"


def speculate(
    f: Callable[[X], Distribution[Y]],
    g: Callable[[Y], Z],
    x: X,
    *,
    guess: Callable[[X], Distribution[Y]],
    executor: Executor,
    random: Random,
) -> Speculation[Y, Z]:
    """Return an outcome drawn from `f(x)`, and `g(outcome)`, running g on a guess while f runs.

    g also runs on guesses that are rejected. It must have no effect that matters then; an exception that it raises
    there is dropped, as without a guess it would never have been called.

    Args:
        f: Slow; returns the distribution of the outcome, the p of the paper.
        g: Slow; works on the outcome.
        x: What f is called with.
        guess: A cheap approximation of f, the paper's q. It runs in the caller's thread.
        executor: Runs f and g side by side, in threads or processes: it needs at least two workers. For processes,
            f, g, x and the outcomes must be picklable.
        random: Draws the outcome. The draws depend on its state only, not on what takes how long.

    Raises:
        NumericsError: `f` or `guess` returned something other than a distribution.
        Exception: Whatever f, guess, or g on the final outcome raised.

    References:
        Algorithm 1 with gamma = 1 (section 2.3), and section 6.
    """
    clock = _Clock()
    q, ran = _timed(guess, x)
    clock.ran("guess", ran)
    guessed = _draw(_checked(q, "guess"), random.random())
    submitted = monotonic()
    of_f = executor.submit(_timed, f, x)
    of_guess = executor.submit(_timed, g, guessed)
    try:
        p, ran = of_f.result()
        clock.ran("f", ran)
        outcome, accepted = _verified(_checked(p, "f"), q, guessed, random)
    except BaseException:
        of_guess.cancel()
        raise
    if accepted:
        value, ran = of_guess.result()
        clock.ran("g(guess)", ran)
    else:
        of_guess.cancel()
        clock.ran("g(guess)", (submitted, None))
        value, ran = executor.submit(_timed, g, outcome).result()
        clock.ran("g", ran)
    return Speculation(outcome, value, guessed, accepted, tuple(clock.spans))


async def speculate_async(
    f: Callable[[X], Awaitable[Distribution[Y]]],
    g: Callable[[Y], Awaitable[Z]],
    x: X,
    *,
    guess: Callable[[X], Awaitable[Distribution[Y]]],
    random: Random,
) -> Speculation[Y, Z]:
    """Do the same as `speculate` with coroutines, such as requests to a server. A rejected g is canceled.

    Args:
        f: Slow; returns the distribution of the outcome.
        g: Slow; works on the outcome.
        x: What f is called with.
        guess: A cheap approximation of f.
        random: Draws the outcome.

    Raises:
        NumericsError: `f` or `guess` returned something other than a distribution.
        Exception: Whatever f, guess, or g on the final outcome raised.
    """
    clock = _Clock()
    q, ran = await _timed_async(guess(x))
    clock.ran("guess", ran)
    guessed = _draw(_checked(q, "guess"), random.random())
    submitted = monotonic()
    of_guess = asyncio.create_task(_timed_async(g(guessed)))
    try:
        p, ran = await _timed_async(f(x))
        clock.ran("f", ran)
        outcome, accepted = _verified(_checked(p, "f"), q, guessed, random)
        if accepted:
            value, ran = await of_guess
            clock.ran("g(guess)", ran)
            return Speculation(outcome, value, guessed, True, tuple(clock.spans))
    finally:
        await _stopped(of_guess)
    clock.ran("g(guess)", (submitted, None))
    value, ran = await _timed_async(g(outcome))
    clock.ran("g", ran)
    return Speculation(outcome, value, guessed, False, tuple(clock.spans))


def expected_speedup(alpha: float, f: float, g: float, guess: float) -> float:
    """Return how many times faster a step is than f and then g, in expectation.

    A step takes `guess + max(f, g)` if the guess is kept, which has probability alpha, else `guess + f + g`.

    Args:
        alpha: The acceptance rate: the sum over all outcomes of min(p, q) (Theorem 3.5).
        f: Seconds that f takes.
        g: Seconds that g takes.
        guess: Seconds that the approximation takes.
    """
    return (f + g) / (guess + alpha * max(f, g) + (1 - alpha) * (f + g))


def _verified(p: Distribution[Y], q: Distribution[Y], guessed: Y, random: Random) -> tuple[Y, bool]:
    """Return an outcome with distribution p, and whether it is the guess, which was drawn from q."""
    # Both numbers are drawn in any case, so that a step always advances the random state by as much.
    compared, drawn = random.random(), random.random()
    if compared * q[guessed] < p.get(guessed, 0.0):
        return guessed, True
    residual = {outcome: max(0.0, weight - q.get(outcome, 0.0)) for outcome, weight in p.items()}
    # Where p is no larger than q anywhere, but for rounding, the residual is 0.
    return _draw(residual if any(residual.values()) else p, drawn), False


def _draw(weights: Distribution[Y], number: float) -> Y:
    """Return the outcome that a number in [0, 1) selects; weights need not sum to 1."""
    possible = [(outcome, weight) for outcome, weight in weights.items() if weight > 0]
    left = number * math.fsum(weight for _, weight in possible)
    for outcome, weight in possible:
        left -= weight
        if left < 0:
            return outcome
    return possible[-1][0]


def _checked(weights: Distribution[Y], name: str) -> Distribution[Y]:
    """Return a distribution.

    Raises:
        NumericsError: It is none.
    """
    if not isinstance(weights, Mapping):
        raise NumericsError(
            f"{name} returned {type(weights).__name__}; it must return a mapping from outcomes to probabilities."
        )
    values = list(weights.values())
    total = math.fsum(values)
    if not all(value >= 0 for value in values) or not abs(total - 1) <= _TOLERANCE:
        raise NumericsError(
            f"{name} returned probabilities that are not a distribution: {len(values)} values, the smallest "
            f"{min(values, default=0):g}, with sum {total:g}. They must not be negative, and sum to 1."
        )
    return weights


class _Clock:
    """Collects spans, with times since it was made."""

    def __init__(self) -> None:
        self._begun = monotonic()
        self.spans: list[Span] = []

    def ran(self, name: str, span: tuple[float, float | None]) -> None:
        begin, end = span
        self.spans.append(Span(name, begin - self._begun, None if end is None else end - self._begun))


def _timed(function: Callable[[X], T], argument: X) -> tuple[T, tuple[float, float]]:
    """Call a function where the executor runs it; return also when it ran."""
    begin = monotonic()
    value = function(argument)
    return value, (begin, monotonic())


async def _timed_async(awaited: Awaitable[T]) -> tuple[T, tuple[float, float]]:
    begin = monotonic()
    value = await awaited
    return value, (begin, monotonic())


async def _stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; what it raises is of no interest."""
    if not task.done():
        task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
