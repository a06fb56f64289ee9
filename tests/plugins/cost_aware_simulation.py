"""Decoding without models: drafters and machines made of random numbers, and the seconds they would take.

A controller is shown the reports of steps that never ran, with noisy seconds. What comes out are the seconds of
its choices without the noise: the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specdec_core.interface import BatchInfo, GammaController, GammaSession, Outcome, StepReport

Rates = Callable[[int, int], float]
"""Acceptance at a position of the draft (from 1), given those before it, at a position in the text."""


def constant(alpha: float) -> Rates:
    return lambda position, index: alpha


def by_position(*rates: float) -> Rates:
    return lambda position, index: rates[min(position, len(rates)) - 1]


def changing(before: float, after: float, at: int) -> Rates:
    return lambda position, index: before if index < at else after


@dataclass(frozen=True)
class Drafter:
    """Who guesses.

    Attributes:
        rates: How well.
        bursts: Chance that it begins to have something to say at a token, and how many tokens that lasts; None for
            a drafter that always says as much as it is asked for.
    """

    rates: Rates
    bursts: tuple[float, int] | None = None

    def text(self, seed: int) -> Text:
        """Begin a text."""
        return Text(self, seed)


class Text:
    """One row's text, as the drafter meets it."""

    def __init__(self, drafter: Drafter, seed: int) -> None:
        self.drafter = drafter
        self.random = random.Random(seed)
        self.index = 0
        self.left = 0  # tokens that the present burst still has

    def draft(self, asked: int) -> tuple[int, int]:
        """Return how many tokens are drafted, and how many of them accepted; and move on."""
        drafted = asked if self.drafter.bursts is None or self.left else 0
        accepted = 0
        while accepted < drafted and self.random.random() < self._rate(accepted + 1):
            accepted += 1
        for _ in range(accepted + 1):
            self._next()
        return drafted, accepted

    def _rate(self, position: int) -> float:
        if self.drafter.bursts and position > self.left:
            return 0.05
        return self.drafter.rates(position, self.index)

    def _next(self) -> None:
        self.index += 1
        self.left = max(0, self.left - 1)
        if self.drafter.bursts and not self.left and self.random.random() < self.drafter.bursts[0]:
            self.left = self.drafter.bursts[1]


@dataclass(frozen=True)
class Machine:
    """Times of the parts of a step, in seconds.

    Attributes:
        verify: T(k), k = 0, 1, ...; continued with the last slope.
        c: A draft token.
        catch_up: What the drafter reads a committed token with that it was not asked after.
        noise: Relative spread of a step.
        outliers: Share of the steps that take three times as long.
        drift: How much slower and faster the machine gets, in waves of 300 steps.
    """

    verify: tuple[float, ...]
    c: float = 0.0
    catch_up: float = 0.0
    noise: float = 0.0
    outliers: float = 0.0
    drift: float = 0.0

    def mean(self, k: int) -> float:
        last = len(self.verify) - 1
        slope = self.verify[-1] - self.verify[-2] if last else 0.0
        return self.verify[min(k, last)] + max(0, k - last) * slope + k * self.c


class Simulation:
    """Runs a controller for some rows; the drafter has read `prompt` tokens when a batch begins to draft."""

    def __init__(
        self, drafter: Drafter, machine: Machine, rows: int = 1, seed: int = 0, prompt: int = 100
    ) -> None:
        self.machine = machine
        self.clean = 0.0  # seconds of the last step, without the noise
        self._prompt = prompt
        self._random = random.Random(seed)
        self._clock = 0
        self._texts = [drafter.text(100 * seed + row) for row in range(rows)]

    def run(self, controller: GammaController, tokens: int, batches: int = 1) -> float:
        """Decode so many tokens of each row in each of some batches; return tokens a second."""
        done, seconds = 0, 0.0
        for _ in range(batches):
            for report in self.steps(controller, tokens):
                done += sum(map(len, report.outcome.committed))
                seconds += self.clean
        return done / seconds

    def steps(self, controller: GammaController, tokens: int) -> Iterator[StepReport]:
        """Decode one batch."""
        rows = len(self._texts)
        session = controller.open(BatchInfo(rows, controller.max_gamma, (tokens,) * rows, greedy=False))
        left, step, missed = [tokens] * rows, 0, self._prompt
        while any(left):
            report = self._step(session, left, step, missed)
            left = [n - len(new) for n, new in zip(left, report.outcome.committed, strict=True)]
            missed = 0 if any(report.asked) else missed + 1
            step += 1
            session.observe(report)
            yield report

    def _step(self, session: GammaSession, left: list[int], step: int, missed: int) -> StepReport:
        asked = tuple(max(0, min(g, n - 1)) for g, n in zip(session.plan(), left, strict=True))
        rows = list(zip(self._texts, asked, left, strict=True))
        drafts = [text.draft(n) if rest else (0, 0) for text, n, rest in rows]
        drafted, accepted = zip(*drafts, strict=True)
        committed = tuple((1,) * (n + 1) if rest else () for n, rest in zip(accepted, left, strict=True))
        finished = tuple(rest == len(new) for rest, new in zip(left, committed, strict=True))
        longest = max(drafted)
        draft = longest * self.machine.c + (missed * self.machine.catch_up if any(asked) else 0.0)
        verify = self.machine.mean(longest) - longest * self.machine.c
        self.clean = draft + verify
        factor = self._factor()
        if not step:
            verify += 5 * self.machine.mean(0)  # the prompt
        tokens = tuple((1,) * n for n in drafted)
        seconds = (draft * factor, verify * factor, (draft + verify) * factor)
        return StepReport(
            step, asked, Outcome(drafted, accepted, committed, finished), tokens, *seconds, (0.0,) * len(left)
        )

    def _factor(self) -> float:
        """Return how much slower or faster than the mean this step is: noise, an outlier, the hour."""
        self._clock += 1
        machine = self.machine
        noise = max(0.5, self._random.gauss(1.0, machine.noise))
        slow = 3.0 if self._random.random() < machine.outliers else 1.0
        return noise * slow * (1 + machine.drift * math.sin(self._clock * 2 * math.pi / 300))
