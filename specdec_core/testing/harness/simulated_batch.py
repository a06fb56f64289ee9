"""Simulated batches: the calls of a controller while a batch is decoded, without any model.

Each step follows the order of the core: gamma, `keep_drafting` after each drafted token, lenience if anything was
drafted, then the report.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_core._time_limit import TimeLimitExceeded
from specdec_core.interface import (
    BatchInfo,
    BestFirstTree,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    Outcome,
    StepReport,
    TokenTree,
)
from specdec_core.interface.errors import is_failure
from specdec_core.testing.causes import located
from specdec_core.testing.harness.scenarios import VOCAB, Scenario, ScenarioRow
from specdec_core.testing.registration import CheckFailure, format_error

_NO_ANSWER: Any = object()
"""Marks a call that raised."""


@dataclass
class _Row:
    behavior: ScenarioRow
    length: int = 0
    ended: bool = False

    @property
    def room(self) -> int:
        """How many tokens may be drafted: the last position is for the target's own token."""
        return 0 if self.ended else max(self.behavior.room - self.length - 1, 0)


@dataclass
class _Draft:
    """The drafts of a step."""

    asked: tuple[int, ...]
    drafted: list[int]
    tokens: list[list[int]] = field(default_factory=list)


class SimulatedBatch:
    """Runs a scenario with a controller, and records its answers.

    Args:
        scenario: How the batch behaves.
        gamma: The gamma controller to drive. None cycles through all values of gamma.
        lenience: The lenience controller to drive, or None.
        require: What counts as a failure: `form` (the number and type of answers, and `open` returns a session),
            `range` (answers in their range), `keep_drafting` (its answers), `no exception`, and `unchanged`
            (it changes no confidences that it is shown). Everything else is tolerated: the last valid answer is
            used, clipped.

    Attributes:
        gammas: Gamma in each step.
        leniences: Lenience in each step; None where the controller was not asked.
        watched: The confidence of each row and which rows drafted on, for each call of `keep_drafting`.
        reports: The reports as they were passed to the controller.

    Raises:
        CheckFailure: The batch cannot be opened. `step` raises it when a call fails, or an answer is not valid.
    """

    def __init__(
        self,
        scenario: Scenario,
        gamma: GammaController | None = None,
        lenience: LenienceController | None = None,
        require: Collection[str] = (),
    ) -> None:
        self.scenario = scenario
        self._required = frozenset(require)
        self._doing = ""
        self.info = BatchInfo(
            len(scenario.rows),
            scenario.max_gamma if gamma is None else gamma.max_gamma,
            tuple(row.room for row in scenario.rows),
            scenario.greedy,
        )
        self.gammas: list[tuple[int, ...]] = []
        self.leniences: list[tuple[tuple[float, ...], ...] | None] = []
        self.watched: list[tuple[tuple[float, ...], tuple[bool, ...]]] = []
        self.reports: list[StepReport] = []
        self._rows = [_Row(row) for row in scenario.rows]
        self._last_gamma = (0,) * len(scenario.rows)
        self._last_lenience: tuple[tuple[float, ...], ...] = ((1.0,),) * len(scenario.rows)
        self._drives_lenience = lenience is not None
        self._gamma: GammaSession | None = None
        self._lenience: LenienceSession | None = None
        if gamma is not None:
            self._gamma = self._open(lambda: gamma.open(self.info), GammaSession)
        if lenience is not None:
            self._lenience = self._open(lambda: lenience.open(self.info), LenienceSession)

    @property
    def session(self) -> GammaSession | LenienceSession | None:
        """The controller's session; None where `open` returned none and that was tolerated."""
        return self._lenience if self._drives_lenience else self._gamma

    @property
    def done(self) -> bool:
        """Whether all rows have ended for good."""
        return all(row.ended for row in self._rows) and not self.scenario.resumes

    @property
    def log(self) -> str:
        """The actions so far, one per line."""
        lines = [f"opened {self.scenario}"]
        if self.reports:
            lines.append(f"reported {len(self.reports)} step(s); the last: {_short(self.reports[-1])}")
        if self._doing:
            lines.append(self._doing)
        return "\n".join(lines)

    def run(self, steps: int) -> SimulatedBatch:
        """Run up to `steps` steps; fewer if all rows end before."""
        for _ in range(steps):
            if self.done:
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
            for row in self._rows:
                row.ended = False
        drafts = self._draft(self._ask_gamma() if draft else (0,) * len(self._rows))
        leniences = self._ask_lenience() if any(drafts.drafted) else None
        self.leniences.append(leniences)
        self._observe(self._verify(drafts, leniences))

    def failure(self, got: str, expected: str, hint: str | None = None) -> CheckFailure:
        """Return a failure that reports what was done so far."""
        return CheckFailure(self.log, got, expected, hint)

    def _fail_if(self, required: str, got: str, expected: str, hint: str | None = None) -> None:
        """Raise a failure, unless it is tolerated."""
        if required in self._required:
            raise self.failure(got, expected, self._located(required, hint))

    def _located(self, required: str, hint: str | None) -> str | None:
        """Return a hint that names the author's function, where its answer is at fault."""
        asked = "lenience" if self._drives_lenience else "plan"
        function = getattr(type(self.session), required if required == "keep_drafting" else asked, None)
        if function is None or required == "unchanged":
            return hint
        return "\n".join(filter(None, [f"See {located(function)}.", hint]))

    def _open(self, function: Callable[[], object], base: type) -> Any:
        """Return the session; None where there is none and that is tolerated."""
        session = self._call("called open()", function)
        if not isinstance(session, base):
            if session is not _NO_ANSWER:
                self._fail_if("form", f"{type(session).__name__}: {session!r}", f"a {base.__name__}")
            return None
        return session

    def _call(self, doing: str, function: Callable[[], Any], required: str = "no exception") -> Any:
        """Return the result of a call into the controller; `_NO_ANSWER` where it raised and that is tolerated."""
        self._doing = doing
        try:
            return function()
        except TimeLimitExceeded as stopped:
            stopped.did = stopped.did or self.log
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            if required in self._required:
                raise self.failure(format_error(error), "no exception") from error
            return _NO_ANSWER

    def _ask_gamma(self) -> tuple[int, ...]:
        session, maximum, batch = self._gamma, self.info.max_gamma, len(self._rows)
        if self._drives_lenience:
            return tuple((len(self.reports) + row) % (maximum + 1) for row in range(batch))
        answer = _NO_ANSWER if session is None else self._call("called plan()", session.plan)
        if isinstance(answer, TokenTree | BestFirstTree):  # drafted as a line here: as long as its longest path
            if len(answer) > maximum:
                self._fail_if("range", f"a tree of {len(answer)} nodes", f"at most max_gamma = {maximum} nodes")
            self._last_gamma = (min(answer.depth, maximum),) * batch
        elif answer is not _NO_ANSWER and self._is_gamma(answer, batch):
            if not all(0 <= value <= maximum for value in answer):
                self._fail_if("range", f"{list(answer)}", f"integers from 0 to max_gamma = {maximum}")
            self._last_gamma = tuple(min(max(value, 0), maximum) for value in answer)
        self.gammas.append(self._last_gamma)
        return self._last_gamma

    def _is_gamma(self, answer: Sequence[int], batch: int) -> bool:
        expected = f"{batch} int(s), one per row, or a TokenTree or BestFirstTree"
        if not _has_length(answer, batch):
            self._fail_if("form", f"{answer!r}", expected, "Rows that have ended need an answer, too.")
            return False
        if not all(isinstance(value, int) for value in answer):
            types = ", ".join(sorted({type(value).__name__ for value in answer}))
            hint = "Round, and convert to `int`. Tensors and numpy scalars are not ints."
            self._fail_if("form", f"{answer!r}, of type {types}", expected, hint)
            return False
        return True

    def _draft(self, gammas: Sequence[int]) -> _Draft:
        """Draft up to gamma, the row's room, and as long as the controller allows."""
        step = len(self.reports)
        asked = tuple(min(gamma, row.room) for gamma, row in zip(gammas, self._rows, strict=True))
        draws = [row.behavior.random(step) for row in self._rows]
        empty = [draw.random() < row.behavior.empty_rate for draw, row in zip(draws, self._rows, strict=True)]
        left = [0 if none else count for none, count in zip(empty, asked, strict=True)]
        draft = _Draft(asked, [0] * len(asked), [[] for _ in asked])
        watches = self._gamma is not None and self._gamma.uses_confidence and step % 5 != 4
        while any(left):
            drawn = [count > 0 for count in left]
            for row, new in enumerate(drawn):
                if new:
                    draft.drafted[row] += 1
                    draft.tokens[row].append(draws[row].randrange(VOCAB))
                    left[row] -= 1
            if watches:
                q = [draw.random() if new else math.nan for draw, new in zip(draws, drawn, strict=True)]
                left = [count if more else 0 for count, more in zip(left, self._ask_watcher(q), strict=True)]
        return draft

    def _ask_watcher(self, confidence: list[float]) -> tuple[bool, ...]:
        session, passed = self._gamma, list(confidence)
        assert session is not None
        doing = f"called keep_drafting({_numbers(confidence)})"
        answer = self._call(doing, lambda: session.keep_drafting(passed), "keep_drafting")
        if repr(passed) != repr(confidence):
            self._fail_if("unchanged", f"the argument is now {_numbers(passed)}", "an unchanged argument")
        if not _has_length(answer, len(confidence)):
            hint = "Rows that drafted nothing (NaN) need an answer, too."
            self._fail_if("keep_drafting", f"{answer!r}", f"{len(confidence)} answer(s), one per row", hint)
            return (True,) * len(confidence)
        self.watched.append((tuple(confidence), tuple(bool(one) for one in answer)))
        return self.watched[-1][1]

    def _ask_lenience(self) -> tuple[tuple[float, ...], ...] | None:
        if not self._drives_lenience:
            return None
        session = self._lenience
        answer = _NO_ANSWER if session is None else self._call("called lenience()", session.lenience)
        rows = None if answer is _NO_ANSWER else self._parse_lenience(answer)
        if rows is not None:
            if not all(0 < value <= 1 for row in rows for value in row):
                self._fail_if("range", f"{answer!r}", "l in (0, 1] for every row and position")
            self._last_lenience = tuple(tuple(v if 0 < v <= 1 else 1.0 for v in row) for row in rows)
        return self._last_lenience

    def _parse_lenience(self, answer: Sequence[float | Sequence[float]]) -> tuple[tuple[float, ...], ...] | None:
        expected = f"{len(self._rows)} answer(s), one per row: a number, or a list of at least one"
        hint = "Rows that have ended need an answer, too."
        if _has_length(answer, len(self._rows)):
            try:
                rows = [tuple(row) if isinstance(row, Sequence) else (row,) for row in answer]
                parsed = tuple(tuple(float(value) for value in row) for row in rows)
            except (TypeError, ValueError, RuntimeError):
                hint = "Convert tensors and arrays to lists of `float`."
            else:
                if all(parsed):
                    return parsed
                hint = "The last number of a row holds for all later positions, so there must be at least one."
        self._fail_if("form", f"{answer!r}", expected, hint)
        return None

    def _verify(self, draft: _Draft, leniences: Sequence[Sequence[float]] | None) -> StepReport:
        step, seconds = len(self.reports), 0.01 * (1 + len(self.reports) % 4)
        accepted, committed, deviation = [], [], []
        for index, (row, drafted) in enumerate(zip(self._rows, draft.drafted, strict=True)):
            draw = row.behavior.random(-1 - step)
            count = 0
            while count < drafted and draw.random() < row.behavior.acceptance_at(step):
                count += 1
            new = [*draft.tokens[index][:count], draw.randrange(VOCAB)]
            if row.ended:
                new = []
            elif draw.random() < row.behavior.end_rate:
                new, row.ended = new[: 1 + draw.randrange(len(new))], True
            row.length += len(new)
            row.ended = row.ended or row.length >= row.behavior.room
            accepted.append(min(count, len(new)))
            committed.append(tuple(new))
            row_lenience = leniences[index] if leniences is not None else (1.0,)
            verified = min(count + 1, drafted, len(new))
            deviation.append(sum(self._deviation(row_lenience, position, draw) for position in range(verified)))
        return StepReport(
            step=step,
            asked=draft.asked,
            outcome=Outcome(
                tuple(draft.drafted),
                tuple(accepted),
                tuple(committed),
                tuple(row.ended for row in self._rows),
            ),
            draft_tokens=tuple(map(tuple, draft.tokens)),
            draft_seconds=seconds * max(draft.drafted) / 5,
            verify_seconds=seconds,
            step_seconds=seconds * (1 + max(draft.drafted) / 5),
            deviation=tuple(deviation),
        )

    def _deviation(self, row_lenience: Sequence[float], position: int, draw: random.Random) -> float:
        """Return the total variation spent at a position: at most 1 / l - 1; 0 or 1 for greedy decoding."""
        lenience = row_lenience[min(position, len(row_lenience) - 1)]
        if lenience == 1:
            return 0.0
        return float(draw.random() < 0.3) if self.scenario.greedy else min(1.0, 1 / lenience - 1) * draw.random()

    def _observe(self, report: StepReport) -> None:
        for session in (self._gamma, self._lenience):
            if session is not None:
                self._call(f"called observe() with {_short(report)}", lambda one=session: one.observe(report))  # type: ignore[misc]
        self.reports.append(report)
        self._doing = ""


def _has_length(answer: object, length: int) -> bool:
    try:
        return len(answer) == length  # type: ignore[arg-type]
    except TypeError:
        return False


def _short(report: StepReport) -> str:
    """Return the main fields of a report as text."""
    outcome = (
        f"{name}={getattr(report.outcome, name)}" for name in ("drafted", "accepted", "committed", "finished")
    )
    return ", ".join([f"asked={report.asked}", *outcome, f"deviation={report.deviation}"])


def _numbers(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in values) + "]"
