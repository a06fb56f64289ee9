"""The result of tuning: a table of the candidates, the winner, and its certainty. Imports no torch."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.costs.machine import TIME_AGAIN
from specdec_core.offline.tune.finalists import Choice
from specdec_core.offline.tune.race import Race, Tried
from specdec_core.study import BASELINE, Study
from specdec_core.study.config.study import with_task
from specdec_core.study.report.formats import UNKNOWN, number, with_spread
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specdec_core.offline.tune.elimination import Ratio
    from specdec_core.study.report.summary import RunSummary

_WIDTH = 200
_ROWS = 20
"""The most candidates that a table shows."""


@dataclass(frozen=True)
class TunedTask:
    """The result for one task.

    Attributes:
        task: Its name; None for the only task of a study without `tasks`.
        race: The race of the candidates.
        baseline: Expected tokens per second without a drafter.
        choice: The winner.
        noise: How well T(k) is known, as a fraction; see `specdec_core.costs.Machine`. None if that is not known.
        note: Why T(k) of the record was not used; None if it was, or there is none.
    """

    task: str | None
    race: Race
    baseline: float
    choice: Choice
    noise: float | None = None
    note: str | None = None

    @property
    def noisy(self) -> bool:
        """Whether T(k) is known less well than the margin of the race allows for."""
        return self.noise is not None and self.noise > self.race.settings.margin

    @property
    def sure(self) -> str:
        """How sure the winner is, in a few sentences."""
        return f"{_of_race(self.race, noisy=self.noisy)} {self.choice.sure}"

    @property
    def warning(self) -> str | None:
        """Doubts about the race."""
        if not self.noisy:
            return None
        return (
            f"T(k) is known to ±{self.noise:.0%} only, and the race allows for a margin of "
            f"{self.race.settings.margin:.0%}: it may have stopped the fastest. {TIME_AGAIN}, and `specdec tune "
            "--fresh` its own. Or raise --margin."
        )

    @property
    def remarks(self) -> list[str]:
        """The warning and the note, as far as there are any."""
        warning = None if self.warning is None else f"Warning: {self.warning}"
        return [one for one in (warning, self.note) if one is not None]


@dataclass(frozen=True)
class Tuning:
    """The result of tuning.

    Attributes:
        study: The study of all candidates.
        record: Name of the record that they were replayed on.
        machine: Name of the machine whose seconds were used.
        tasks: What was found for each task.
        best: The study of the winning runs, as plain data.
        left_out: Why installed drafters are not candidates, by name, if no study names the candidates.
        seconds: Wall time of each part of the work, in order.
        files: The files that were written.
    """

    study: Study
    record: str
    machine: str
    tasks: tuple[TunedTask, ...]
    best: Mapping[str, Any]
    left_out: Mapping[str, str]
    seconds: Mapping[str, float]
    files: tuple[Path, ...] = ()

    def comment(self) -> list[str]:
        """Return the lines at the top of the winning study: where it comes from, and how sure it is."""
        lines = [f"Written by `specdec tune` from {self.record}, with the seconds of {self.machine}."]
        said = ((one, " ".join([f"{one.choice.run}. {one.sure}", *one.remarks])) for one in self.tasks)
        return lines + [with_task(one.task, text) for one, text in said]

    def to_dict(self) -> dict[str, Any]:
        """Return everything that was found, as plain data: what `tune.json` holds."""
        runs = {run.name: run.resolved() for run in self.study.runs}
        return {
            "specdec_tuning": 1,
            "record": self.record,
            "machine": self.machine,
            "left_out": dict(self.left_out),
            "seconds": dict(self.seconds),
            "tasks": [_plain(one, runs) for one in self.tasks],
            "best": dict(self.best),
        }

    def printed(self, *, every: bool = False) -> Iterator[RenderableType]:
        """Yield what `specdec tune` prints: for each task a table of what was tried, the winner, and how sure.

        Args:
            every: Show every candidate, instead of the first 20.
        """
        for count, one in enumerate(self.tasks):
            if count:
                yield Prose("")
            yield for_terminal(tried_table(one, self.record, self.machine, None if every else _ROWS))
            unless = " (but no drafter at all is faster here)" if one.choice.pays is False else ""
            yield Prose(with_task(one.task, f"Best: {one.choice.run}{unless}"), "bold")
            yield Prose(one.sure)
            yield from (Prose(remark, "yellow") for remark in one.remarks)
        yield from (Prose(f"Not tried: {name}: {reason}") for name, reason in self.left_out.items())

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        for part in self.printed():
            console.print(part)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def tried_table(tuned: TunedTask, record: str, machine: str, most: int | None = None) -> ReportTable:
    """Return what was tried for a task: the winner first, then finalists, then the others by how far they came.

    Args:
        tuned: What was found for the task.
        record: Name of the record.
        machine: Name of the machine.
        most: The most candidates to show; None for all.
    """
    live = {one.name: one for one in tuned.choice.rows}
    first = Tried(BASELINE, 0, 0)
    rows = [_row(first, live, tuned.baseline, "dim")]
    ordered = _ordered(tuned)
    for one in ordered[:most]:
        style = "" if one.outcome == "finalist" else "dim"
        rows.append(_row(one, live, None, "bold" if one.name == tuned.choice.run else style))
    race = tuned.race
    percent = f"{100 * (1 - 2 * race.level):.4g}%"
    notes = [
        f"Expected: replayed on {race.texts:,} texts of {race.prompts[-1]} prompts of {record}, with the seconds "
        f"of {machine}, without reading prompts; ± half the 95% confidence interval.",
        f"Slower: compared with the leader of its last round, by so much, and at least by the lower end of the "
        f"{percent} interval. Where that is above {race.settings.margin:.0%}, the candidate is stopped.",
    ]
    if more := max(0, len(ordered) - (most or len(ordered))):
        notes.append(f"{more} more candidate{'s' * (more > 1)}: --wide shows all.")
    return ReportTable(
        columns=tuple(column for column in _COLUMNS if live or column not in _LIVE),
        rows=tuple(row if live else Row(row.cells[: -len(_LIVE) - 1] + row.cells[-1:], row.style) for row in rows),
        notes=tuple(notes),
        title=tuned.task,
        unknown="not timed, or not replayed",
    )


_LIVE = (Column("live\ntokens/s", spare=1), Column("live\nspeed-up"))
_COLUMNS = (
    Column("candidate", numeric=False),
    Column("rounds", spare=4),
    Column("texts", spare=5),
    Column("expected\ntokens/s", spare=1),
    Column("slower\nby", spare=2),
    Column("at\nleast", spare=3),
    *_LIVE,
    Column("outcome", numeric=False, wraps=True),
)


def _row(one: Tried, live: Mapping[str, RunSummary], expected: float | None, style: str) -> Row:
    timed = live.get(one.name)
    cells = [one.name]
    if expected is not None:
        cells += ["", "", number(expected, 1), "", ""]
    else:
        cells += [str(one.rounds), str(one.texts), _speed(one.speed), *_slower(one.slower)]
    cells += [UNKNOWN, UNKNOWN] if timed is None else _timed(timed)
    return Row((*cells, _outcome(one, expected is not None)), style)


def _outcome(one: Tried, baseline: bool) -> str:
    if baseline:
        return ""
    return one.outcome if one.outcome == "stopped" else one.reason or one.outcome


def _timed(one: RunSummary) -> list[str]:
    speed = one.speed
    interval = (None, None) if one.name == BASELINE else (speed.speedup_low, speed.speedup_high)
    ends = (speed.tokens_per_second_min, speed.tokens_per_second_max)
    return [
        with_spread(speed.tokens_per_second, *ends, 1, repeats=one.repeats),
        with_spread(speed.speedup, *interval, 2, "×", repeats=one.repeats),
    ]


def _speed(speed: Ratio | None) -> str:
    return UNKNOWN if speed is None else with_spread(speed.value, *_finite(speed), 1)


def _finite(ratio: Ratio) -> tuple[float | None, float | None]:
    known = ratio.low > -float("inf")
    return (ratio.low, ratio.high) if known else (None, None)


def _slower(ratio: Ratio | None) -> tuple[str, str]:
    """Return by how much a candidate is slower, and by how much at least."""
    if ratio is None:
        return UNKNOWN, UNKNOWN
    low, _ = _finite(ratio)
    return f"{ratio.value - 1:.1%}", UNKNOWN if low is None else f"{low - 1:.1%}"


def _ordered(tuned: TunedTask) -> Sequence[Tried]:
    ranks = {name: index for index, name in enumerate(tuned.race.finalists)}

    def rank(one: Tried) -> tuple[bool, int, int, float]:
        speed = 0.0 if one.speed is None else one.speed.value
        return one.name != tuned.choice.run, ranks.get(one.name, len(ranks)), -one.rounds, -speed

    return sorted(tuned.race.tried, key=rank)


def _of_race(race: Race, *, noisy: bool) -> str:
    counts = Counter(one.outcome for one in race.tried)
    stopped, beyond = counts["stopped"], counts["beyond"]
    what = f"{stopped} of {len(race.tried) - counts['refused']} candidates were stopped as clearly slower"
    sure = (
        f"with at least {1 - race.settings.error:.0%} probability, the one that is fastest with these seconds on "
        "prompts like these is not among them"
    )
    if noisy:
        sure = "whether the fastest is among them is not known, as the times of steps are too noisy"
    more = f"; {beyond} more that could not be told from the finalists were not timed" if beyond else ""
    return f"{what}: {sure}{more}."


def _plain(one: TunedTask, runs: Mapping[str, Any]) -> dict[str, Any]:
    live = {row.name: row for row in one.choice.rows}
    return {
        "task": one.task,
        "winner": one.choice.run,
        "pays": one.choice.pays,
        "tied": list(one.choice.tied),
        "sure": one.sure,
        "warning": one.warning,
        "noise": one.noise,
        "note": one.note,
        "baseline_tokens_per_second_expected": one.baseline,
        "race": {
            **asdict(one.race.settings),
            "level": one.race.level,
            "prompts": list(one.race.prompts),
            "texts": one.race.texts,
        },
        "finalists": list(one.race.finalists),
        "candidates": [_candidate(tried, live.get(tried.name)) | runs[tried.name] for tried in one.race.tried],
        "live_baseline": _live(live.get(BASELINE)),
    }


def _candidate(tried: Tried, timed: RunSummary | None) -> dict[str, Any]:
    return {
        "name": tried.name,
        "rounds": tried.rounds,
        "texts": tried.texts,
        "outcome": tried.outcome,
        "reason": tried.reason,
        "leader": tried.leader,
        "tokens_per_second_expected": _ends(tried.speed),
        "slower": _ends(tried.slower),
        "live": _live(timed),
    }


def _ends(ratio: Ratio | None) -> dict[str, float | None] | None:
    if ratio is None:
        return None
    low, high = _finite(ratio)
    return {"value": ratio.value, "low": low, "high": high}


def _live(timed: RunSummary | None) -> dict[str, Any] | None:
    return None if timed is None else {"repeats": timed.repeats, "status": timed.status, **asdict(timed.speed)}
