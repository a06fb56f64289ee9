"""Batches that are decoded in the mind: what a controller is asked and told, as the core does it, without a model.

The order in a step is that of the core: gamma, then (with every drafted token) whether to draft on, then lenience
if anything was drafted, then the report.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec_core.border import (
    BatchInfo,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    StepReport,
)
from specdec_core.testing.checking import CheckFailure
from specdec_core.testing.failing import told

VOCAB = 6
"""Token ids of what is drafted in the mind."""
_NOTHING: Any = object()
"""No answer, as the call failed."""
SPELL = 12
"""Steps for which a row's drafts stay as good as they are."""


@dataclass(frozen=True)
class RowScript:
    """What is to become of a row.

    Attributes:
        seed: Of all that happens to it.
        room: The most new tokens.
        ends: Chance that it ends with a step.
        gifted: Chance that a draft token is accepted; None goes through good and bad spells.
        silent: Chance that the drafter has nothing to propose.
    """

    seed: int
    room: int = 60
    ends: float = 0.0
    gifted: float | None = None
    silent: float = 0.15

    def numbers(self, step: int) -> random.Random:
        """Return the random numbers of a step: those of a row depend on nothing but itself."""
        return random.Random(f"{self.seed}/{step}")

    def acceptance(self, step: int) -> float:
        """Return the chance that a draft token of this step is accepted."""
        return (1.0, 0.0, 0.6)[(step // SPELL + self.seed) % 3] if self.gifted is None else self.gifted


@dataclass(frozen=True)
class Script:
    """What is to become of a batch.

    Attributes:
        rows: Its rows.
        argmax: Whether decoding is argmax.
        max_gamma: The most tokens of a step, for lenience controllers; a gamma controller says its own.
        resumes: Whether rows that have ended go on later, as they do within a hierarchy.
    """

    rows: tuple[RowScript, ...]
    argmax: bool = False
    max_gamma: int = 4
    resumes: bool = False

    def __str__(self) -> str:
        rooms = ", ".join(str(row.room) for row in self.rows)
        how = "argmax" if self.argmax else "sampled"
        return f"an imagined batch of {len(self.rows)} row(s), {how}, with room for {rooms} new tokens"


def script(*seeds: int, **given: object) -> Script:
    """Return a batch with rows of these seeds, which else are as said."""
    return Script(tuple(RowScript(seed, **given) for seed in seeds))  # type: ignore[arg-type]


@dataclass
class _Row:
    script: RowScript
    written: int = 0
    ended: bool = False

    @property
    def room(self) -> int:
        """How many tokens may be drafted: the last place is for the token that the target draws."""
        return 0 if self.ended else max(self.script.room - self.written - 1, 0)


@dataclass
class _Draft:
    """What the rows drafted in a step."""

    asked: tuple[int, ...]
    drafted: list[int]
    tokens: list[list[int]] = field(default_factory=list)


class Course:
    """A batch while it is decoded in the mind. What the controller answers is kept.

    Args:
        script: What is to become of it.
        gamma: The controller of gamma that is led, or None: then gamma goes through all numbers.
        lenience: The controller of lenience that is led, or None.
        judged: What counts as a failure: `form` (answers of the right number and type, and sessions that are
            some), `bounds` (numbers that are allowed), `watching` (what `keep_drafting` answers), `raising` (no
            exception) and `handed` (what is handed over stays as it is). All else is forgiven: the last good
            answer holds, and bounds are kept for it.

    Attributes:
        gammas: What was asked for in each step.
        leniences: What l was in each step; None where it was not asked.
        watched: What the rows' confidence was, and who drafted on, each time that was asked.
        reports: What was reported, as it was handed over.

    Raises:
        CheckFailure: The batch cannot be opened. `step` raises it where a call fails, or an answer is not legal.
    """

    def __init__(
        self,
        script: Script,
        gamma: GammaController | None = None,
        lenience: LenienceController | None = None,
        judged: Collection[str] = (),
    ) -> None:
        self.script = script
        self._judged = frozenset(judged)
        self._doing = ""
        self.info = BatchInfo(
            len(script.rows),
            script.max_gamma if gamma is None else gamma.max_gamma,
            tuple(row.room for row in script.rows),
            script.argmax,
        )
        self.gammas: list[tuple[int, ...]] = []
        self.leniences: list[tuple[tuple[float, ...], ...] | None] = []
        self.watched: list[tuple[tuple[float, ...], tuple[bool, ...]]] = []
        self.reports: list[StepReport] = []
        self._rows = [_Row(row) for row in script.rows]
        self._good_gamma = (0,) * len(script.rows)
        self._good_lenience: tuple[tuple[float, ...], ...] = ((1.0,),) * len(script.rows)
        self._plays_lenience = lenience is not None
        self._gamma: GammaSession | None = None
        self._lenience: LenienceSession | None = None
        if gamma is not None:
            self._gamma = self._opened(lambda: gamma.open(self.info), GammaSession)
        if lenience is not None:
            self._lenience = self._opened(lambda: lenience.open(self.info), LenienceSession)

    @property
    def session(self) -> GammaSession | LenienceSession | None:
        """The controller's session; None where it opened none, and that was forgiven."""
        return self._lenience if self._plays_lenience else self._gamma

    @property
    def done(self) -> bool:
        """Whether all rows have ended for good."""
        return all(row.ended for row in self._rows) and not self.script.resumes

    def play(self, steps: int) -> Course:
        """Take so many steps, fewer if all rows end before."""
        for _ in range(steps):
            if self.done:
                break
            self.step()
        return self

    def step(self, *, ask: bool = True) -> None:
        """Take a step.

        Args:
            ask: Whether anybody drafts; a drafter that failed is not asked again, and the reports go on.
        """
        if self.script.resumes and len(self.reports) % 3 == 2:
            for row in self._rows:
                row.ended = False
        wanted = self._ask_gamma() if ask else (0,) * len(self._rows)
        draft = self._draft(wanted)
        leniences = self._ask_lenience() if any(draft.drafted) else None
        self.leniences.append(leniences)
        self._tell(self._verify(draft, leniences))

    def failure(self, got: str, expected: str, hint: str | None = None) -> CheckFailure:
        """Return a failure that tells what was done so far."""
        lines = [f"opened {self.script}"]
        if self.reports:
            lines.append(f"told it of {len(self.reports)} step(s); the last: {_short(self.reports[-1])}")
        if self._doing:
            lines.append(self._doing)
        return CheckFailure("\n".join(lines), got, expected, hint)

    def _fault(self, about: str, got: str, expected: str, hint: str | None = None) -> None:
        """Raise a failure, if this is judged here."""
        if about in self._judged:
            raise self.failure(got, expected, hint)

    def _opened(self, function: Callable[[], object], base: type) -> Any:
        """Return the session, or None where there is none and that is forgiven."""
        session = self._call("called open()", function)
        if not isinstance(session, base):
            if session is not _NOTHING:
                self._fault("form", f"{type(session).__name__}: {session!r}", f"a {base.__name__}")
            return None
        return session

    def _call(self, doing: str, function: Callable[[], Any], about: str = "raising") -> Any:
        """Return what a call into the controller gives; `_NOTHING` where it raised, and that is forgiven."""
        self._doing = doing
        try:
            return function()
        except Exception as error:
            if about in self._judged:
                raise self.failure(told(error), "no exception") from error
            return _NOTHING

    def _ask_gamma(self) -> tuple[int, ...]:
        session, most, batch = self._gamma, self.info.max_gamma, len(self._rows)
        if self._plays_lenience:
            return tuple((len(self.reports) + row) % (most + 1) for row in range(batch))
        answer = _NOTHING if session is None else self._call("called gamma()", session.gamma)
        if answer is not _NOTHING and self._is_gamma(answer, batch):
            if not all(0 <= value <= most for value in answer):
                self._fault("bounds", f"{list(answer)}", f"numbers from 0 to max_gamma, which is {most}")
            self._good_gamma = tuple(min(max(value, 0), most) for value in answer)
        self.gammas.append(self._good_gamma)
        return self._good_gamma

    def _is_gamma(self, answer: Sequence[int], batch: int) -> bool:
        expected = f"{batch} whole number(s), one a row"
        if not _is_long(answer, batch):
            self._fault("form", f"{answer!r}", expected, "Rows that have ended are answered for, too.")
            return False
        if not all(isinstance(value, int) for value in answer):
            kinds = ", ".join(sorted({type(value).__name__ for value in answer}))
            hint = "Round, and make them `int`: numbers of numpy and torch are none."
            self._fault("form", f"{answer!r}, of {kinds}", f"{expected}, of the type int", hint)
            return False
        return True

    def _draft(self, wanted: Sequence[int]) -> _Draft:
        """Draft as much as was asked for, as there is room for, and as the controller lets."""
        step = len(self.reports)
        asked = tuple(min(gamma, row.room) for gamma, row in zip(wanted, self._rows, strict=True))
        numbers = [row.script.numbers(step) for row in self._rows]
        silent = [draw.random() < row.script.silent for draw, row in zip(numbers, self._rows, strict=True)]
        left = [0 if quiet else most for quiet, most in zip(silent, asked, strict=True)]
        draft = _Draft(asked, [0] * len(asked), [[] for _ in asked])
        watches = self._gamma is not None and self._gamma.watches_confidence and step % 5 != 4
        while any(left):
            took = [most > 0 for most in left]
            for row, more in enumerate(took):
                if more:
                    draft.drafted[row] += 1
                    draft.tokens[row].append(numbers[row].randrange(VOCAB))
                    left[row] -= 1
            if watches:
                sure = [draw.random() if new else math.nan for draw, new in zip(numbers, took, strict=True)]
                on = self._ask_watcher(sure)
                left = [most if more else 0 for most, more in zip(left, on, strict=True)]
        return draft

    def _ask_watcher(self, confidence: list[float]) -> tuple[bool, ...]:
        session, given = self._gamma, list(confidence)
        assert session is not None
        doing = f"called keep_drafting({_numbers(confidence)})"
        answer = self._call(doing, lambda: session.keep_drafting(given), "watching")
        if repr(given) != repr(confidence):
            self._fault("handed", f"the list that was handed over is now {_numbers(given)}", "the list as it was")
        if not _is_long(answer, len(confidence)):
            hint = "Rows that have drafted none (NaN) are answered for, too."
            self._fault("watching", f"{answer!r}", f"{len(confidence)} answer(s), one a row", hint)
            return (True,) * len(confidence)
        self.watched.append((tuple(confidence), tuple(bool(one) for one in answer)))
        return self.watched[-1][1]

    def _ask_lenience(self) -> tuple[tuple[float, ...], ...] | None:
        if not self._plays_lenience:
            return None
        session = self._lenience
        answer = _NOTHING if session is None else self._call("called lenience()", session.lenience)
        rows = None if answer is _NOTHING else self._lenience_of(answer)
        if rows is not None:
            if not all(0 < value <= 1 for row in rows for value in row):
                self._fault("bounds", f"{answer!r}", "l in (0, 1] for every row and place")
            self._good_lenience = tuple(tuple(v if 0 < v <= 1 else 1.0 for v in row) for row in rows)
        return self._good_lenience

    def _lenience_of(self, answer: Sequence[float | Sequence[float]]) -> tuple[tuple[float, ...], ...] | None:
        expected = f"{len(self._rows)} answer(s), one a row: a number, or a list of at least one"
        hint = "Rows that have ended are answered for, too."
        if _is_long(answer, len(self._rows)):
            try:
                rows = [tuple(row) if isinstance(row, Sequence) else (row,) for row in answer]
                legal = tuple(tuple(float(value) for value in row) for row in rows)
            except (TypeError, ValueError, RuntimeError):
                hint = "Make tensors and arrays lists of `float`."
            else:
                if all(legal):
                    return legal
                hint = "The last number of a row holds for all places behind it; there must be one."
        self._fault("form", f"{answer!r}", expected, hint)
        return None

    def _verify(self, draft: _Draft, leniences: Sequence[Sequence[float]] | None) -> StepReport:
        step, moment = len(self.reports), 0.01 * (1 + len(self.reports) % 4)
        accepted, committed, deviation = [], [], []
        for index, (row, drafted) in enumerate(zip(self._rows, draft.drafted, strict=True)):
            numbers = row.script.numbers(-1 - step)
            kept = 0
            while kept < drafted and numbers.random() < row.script.acceptance(step):
                kept += 1
            new = [*draft.tokens[index][:kept], numbers.randrange(VOCAB)]
            if row.ended:
                new = []
            elif numbers.random() < row.script.ends:
                new, row.ended = new[: 1 + numbers.randrange(len(new))], True
            row.written += len(new)
            row.ended = row.ended or row.written >= row.script.room
            accepted.append(min(kept, len(new)))
            committed.append(tuple(new))
            each = leniences[index] if leniences is not None else (1.0,)
            judged = min(kept + 1, drafted, len(new))
            deviation.append(sum(self._spent(each, place, numbers) for place in range(judged)))
        return StepReport(
            step=step,
            asked=draft.asked,
            drafted=tuple(draft.drafted),
            accepted=tuple(accepted),
            committed=tuple(committed),
            finished=tuple(row.ended for row in self._rows),
            draft_tokens=tuple(map(tuple, draft.tokens)),
            draft_seconds=moment * max(draft.drafted) / 5,
            verify_seconds=moment,
            step_seconds=moment * (1 + max(draft.drafted) / 5),
            deviation=tuple(deviation),
        )

    def _spent(self, each: Sequence[float], place: int, numbers: random.Random) -> float:
        """Return what judging a place with lenience cost: at most 1 / l - 1, and for argmax a whole token."""
        lenience = each[min(place, len(each) - 1)]
        if lenience == 1:
            return 0.0
        return (
            float(numbers.random() < 0.3) if self.script.argmax else min(1.0, 1 / lenience - 1) * numbers.random()
        )

    def _tell(self, report: StepReport) -> None:
        kept = replace(report)
        for session in (self._gamma, self._lenience):
            if session is not None:
                self._call(f"called observe() with {_short(report)}", lambda one=session: one.observe(report))  # type: ignore[misc]
        if report != kept:
            self._fault("handed", f"the report is now {_short(report)}", f"the report as it was: {_short(kept)}")
        self.reports.append(kept)
        self._doing = ""


def _is_long(answer: object, length: int) -> bool:
    try:
        return len(answer) == length  # type: ignore[arg-type]
    except TypeError:
        return False


def _short(report: StepReport) -> str:
    """Return what matters of a report."""
    names = ("asked", "drafted", "accepted", "committed", "finished", "deviation")
    return ", ".join(f"{name}={getattr(report, name)}" for name in names)


def _numbers(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in values) + "]"
