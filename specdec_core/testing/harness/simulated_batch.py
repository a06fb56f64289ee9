"""Simulated batches: the calls of a controller while a batch is decoded, without any model.

Each step follows the order of the core: gamma, `keep_drafting` after each drafted token, lenience if anything was
drafted, then the report.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from specdec_core.decoding.proposer import checked_plan
from specdec_core.decoding.verify import checked_lenience
from specdec_core.interface import BatchInfo, GammaController, GammaSession, LenienceController, LenienceSession
from specdec_core.interface.outcome import Outcome, StepReport
from specdec_core.testing.failures import CheckFailure, calling

VOCAB = 6
"""Number of token ids of simulated drafts."""
PHASE = 12
"""Number of steps after which a row's acceptance rate changes."""


@dataclass(frozen=True)
class ScenarioRow:
    """How one row of a simulated batch behaves.

    Attributes:
        seed: Seed of everything that happens to it.
        room: Maximum number of new tokens.
        end_rate: Probability that the row ends in a step.
        acceptance: Probability that a draft token is accepted; None alternates between all, none and some.
        empty_rate: Probability that the drafter proposes nothing.
    """

    seed: int
    room: int = 60
    end_rate: float = 0.0
    acceptance: float | None = None
    empty_rate: float = 0.15

    def random(self, step: int) -> random.Random:
        """Return the random numbers of a step. They depend on this row only."""
        return random.Random(f"{self.seed}/{step}")

    def acceptance_at(self, step: int) -> float:
        """Return the probability that a draft token of this step is accepted."""
        return (1.0, 0.0, 0.6)[(step // PHASE + self.seed) % 3] if self.acceptance is None else self.acceptance


@dataclass(frozen=True)
class Scenario:
    """How a simulated batch behaves.

    Attributes:
        rows: Its rows.
        greedy: Whether decoding is greedy.
        max_gamma: Maximum draft length, for lenience controllers. Gamma controllers have their own.
        resumes: Whether rows that have ended go on later, as they do inside a hierarchy.
    """

    rows: tuple[ScenarioRow, ...]
    greedy: bool = False
    max_gamma: int = 4
    resumes: bool = False

    def __str__(self) -> str:
        rooms = ", ".join(str(row.room) for row in self.rows)
        how = "greedy" if self.greedy else "sampled"
        return f"a simulated batch of {len(self.rows)} row(s), {how}, with room for {rooms} new tokens"


def scenario_of(*seeds: int, greedy: bool = False, **settings: Any) -> Scenario:
    """Return a scenario with a row for each seed. The settings are those of `ScenarioRow`."""
    return Scenario(tuple(ScenarioRow(seed, **settings) for seed in seeds), greedy)


def lenience_at(row: Sequence[float], position: int) -> float:
    """Return l at a position. The last number of a row holds for all later positions."""
    return row[min(position, len(row) - 1)]


class SimulatedBatch:
    """Runs a scenario with a controller, and records its answers.

    Args:
        scenario: How the batch behaves.
        controller: The controller to drive. With a lenience controller, gamma cycles through all values.

    Attributes:
        gammas: Gamma in each step.
        leniences: Lenience in each step; None where the controller was not asked.
        watched: The confidence of each row and which rows drafted on, for each call of `keep_drafting`.
        reports: The reports as they were passed to the controller.

    Raises:
        CheckFailure: The batch cannot be opened. `step` raises it when a call fails, or an answer is not valid.
    """

    def __init__(self, scenario: Scenario, controller: GammaController | LenienceController) -> None:
        self.scenario = scenario
        self.gammas: list[tuple[int, ...]] = []
        self.leniences: list[tuple[tuple[float, ...], ...] | None] = []
        self.watched: list[tuple[tuple[float, ...], tuple[bool, ...]]] = []
        self.reports: list[StepReport] = []
        self._controller = controller
        self._lengths = [0] * len(scenario.rows)
        self._ended = [False] * len(scenario.rows)
        self.info = BatchInfo(
            len(scenario.rows),
            controller.max_gamma if isinstance(controller, GammaController) else scenario.max_gamma,
            tuple(row.room for row in scenario.rows),
            scenario.greedy,
        )
        base = GammaSession if isinstance(controller, GammaController) else LenienceSession
        with calling(f"{self.log}, called open()", f"a {base.__name__}"):
            self.session: GammaSession | LenienceSession = controller.open(self.info)
        if not isinstance(self.session, base):
            raise self.failure(f"{type(self.session).__name__}: {self.session!r}", f"a {base.__name__}")

    @property
    def log(self) -> str:
        """The actions so far, one per line."""
        lines = [f"opened {self.scenario}"]
        if self.reports:
            last = self.reports[-1]
            lines.append(f"reported {len(self.reports)} step(s); the last: asked={last.asked}, {last.outcome}")
        return "\n".join(lines)

    def run(self, steps: int) -> Self:
        """Run up to `steps` steps; fewer if all rows end for good before."""
        for _ in range(steps):
            if all(self._ended) and not self.scenario.resumes:
                break
            self.step()
        return self

    def step(self, *, draft: bool = True) -> None:
        """Run one step.

        Args:
            draft: Whether there is a drafter. After a drafter has failed, the controller is not asked any more,
                and still gets reports.
        """
        if self.scenario.resumes and len(self.reports) % 3 == 2:
            self._ended = [False] * len(self._ended)
        gammas = self._ask_gamma() if draft else (0,) * len(self._ended)
        # The last position of a row is for the target's own token.
        rooms = zip(self.scenario.rows, self._lengths, self._ended, strict=True)
        left = [0 if ended else max(row.room - length - 1, 0) for row, length, ended in rooms]
        asked = tuple(map(min, gammas, left))
        tokens = self._draft(asked)
        self.leniences.append(self._ask_lenience() if any(tokens) else None)
        report = self._verify(asked, tokens)
        with calling(f"{self.log}\ncalled observe() with {report}"):
            self.session.observe(report)
        self.reports.append(report)
        if isinstance(self._controller, GammaController) and self._controller.max_gamma != self.info.max_gamma:
            hint = "Buffers for max_gamma tokens are allocated when a batch opens."
            raise self.failure(f"max_gamma is now {self._controller.max_gamma}", f"{self.info.max_gamma}", hint)

    def failure(self, got: str, expected: str, hint: str | None = None) -> CheckFailure:
        """Return a failure that reports what was done so far."""
        return CheckFailure(self.log, got, expected, hint)

    def _ask_gamma(self) -> tuple[int, ...]:
        batch, maximum = len(self._ended), self.info.max_gamma
        if not isinstance(self.session, GammaSession):
            return tuple((len(self.reports) + row.seed) % (maximum + 1) for row in self.scenario.rows)
        expected = f"{batch} int(s) from 0 to {maximum}, one per row, also for rows that have ended; or a tree"
        with calling(f"{self.log}\ncalled plan()", expected):
            plan = checked_plan(self.session.plan(), batch, maximum)
        # A tree is drafted as a line here, as long as its longest path.
        self.gammas.append(plan if isinstance(plan, tuple) else (min(plan.depth, maximum),) * batch)
        return self.gammas[-1]

    def _draft(self, asked: Sequence[int]) -> list[list[int]]:
        """Draft up to the budget, and as long as the controller allows."""
        draws = [row.random(len(self.reports)) for row in self.scenario.rows]
        pairs = zip(asked, draws, self.scenario.rows, strict=True)
        left = [0 if draw.random() < row.empty_rate else count for count, draw, row in pairs]
        tokens: list[list[int]] = [[] for _ in asked]
        watches = isinstance(self.session, GammaSession) and self.session.uses_confidence
        while any(left):
            q = []
            for row, draw in enumerate(draws):
                if left[row]:
                    tokens[row].append(draw.randrange(VOCAB))
                q.append(draw.random() if left[row] and watches else math.nan)
            on = self._ask_watcher(q) if watches else (True,) * len(q)
            left = [max(count - 1, 0) if more else 0 for count, more in zip(left, on, strict=True)]
        return tokens

    def _ask_watcher(self, confidence: list[float]) -> tuple[bool, ...]:
        assert isinstance(self.session, GammaSession)
        did, passed = f"{self.log}\ncalled keep_drafting({confidence})", tuple(confidence)  # not to be changed
        expected = f"{len(passed)} answer(s), one per row, also for rows that drafted nothing (NaN)"
        with calling(did, expected):
            answer = tuple(map(bool, self.session.keep_drafting(passed)))
        if len(answer) != len(passed):
            raise CheckFailure(did, f"{answer}", expected)
        self.watched.append((passed, answer))
        return answer

    def _ask_lenience(self) -> tuple[tuple[float, ...], ...] | None:
        if not isinstance(self.session, LenienceSession):
            return None
        did = f"{self.log}\ncalled lenience()"
        expected = (
            f"{len(self._ended)} answer(s), one per row, also for rows that have ended: a number in (0, 1], or a "
            "list of at least one, of which the last holds for all later positions"
        )
        with calling(did, expected):
            return checked_lenience(self.session.lenience(), len(self._ended))

    def _verify(self, asked: tuple[int, ...], tokens: Sequence[Sequence[int]]) -> StepReport:
        """Accept tokens as the scenario says; return the report."""
        step, seconds = len(self.reports), 0.01 * (1 + len(self.reports) % 4)
        accepted, committed, deviation = [], [], []
        for index, (row, drafted) in enumerate(zip(self.scenario.rows, tokens, strict=True)):
            draw, count = row.random(-1 - step), 0
            while count < len(drafted) and draw.random() < row.acceptance_at(step):
                count += 1
            new = [*drafted[:count], draw.randrange(VOCAB)]
            if self._ended[index]:
                new = []
            elif draw.random() < row.end_rate:
                new = new[: 1 + draw.randrange(len(new))]
                self._ended[index] = True
            self._lengths[index] += len(new)
            self._ended[index] |= self._lengths[index] >= row.room
            accepted.append(min(count, len(new)))
            committed.append(tuple(new))
            positions = range(min(count + 1, len(drafted), len(new)))
            deviation.append(sum(self._deviation(index, position, draw) for position in positions))
        longest = max(map(len, tokens))
        return StepReport(
            step=step,
            asked=asked,
            outcome=Outcome(tuple(map(len, tokens)), tuple(accepted), tuple(committed), tuple(self._ended)),
            draft_tokens=tuple(map(tuple, tokens)),
            draft_seconds=seconds * longest / 5,
            verify_seconds=seconds,
            step_seconds=seconds * (1 + longest / 5),
            deviation=tuple(deviation),
        )

    def _deviation(self, index: int, position: int, draw: random.Random) -> float:
        """Return the total variation spent at a position: at most 1 / l - 1; 0 or 1 for greedy decoding."""
        row = (self.leniences[-1] or ((1.0,),) * len(self._ended))[index]
        lenience = lenience_at(row, position)
        if lenience == 1:
            return 0.0
        return float(draw.random() < 0.3) if self.scenario.greedy else min(1.0, 1 / lenience - 1) * draw.random()
