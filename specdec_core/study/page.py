"""The report of a study: one page of HTML that needs nothing else, no script and no network. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from specdec_core.study import charts
from specdec_core.study.expectation import ENOUGH
from specdec_core.study.study import PLAIN
from specdec_core.study.table import by_task, departures, quality_table, results_table

if TYPE_CHECKING:
    from rich.table import Table

    from specdec_core.study.prompts import PromptText
    from specdec_core.study.summary import RunSummary

SHOWN = 5
"""Prompts of a task whose texts are shown."""
_PROMPT, _OUTPUT = 600, 3000
"""Characters of a prompt or reference, and of an output, that are shown."""


def report_page(
    study_name: str,
    summaries: Sequence[RunSummary],
    outputs: Iterable[Mapping[str, Any]],
    prompts: Mapping[str | None, Sequence[PromptText]],
) -> str:
    """Return a study's report as a page of HTML; the same arguments give the same page.

    Args:
        study_name: Name of the study's file, the title.
        summaries: What was found out about each run, task by task, the baseline first in each.
        outputs: What each run wrote after each prompt: the lines of `outputs.jsonl`.
        prompts: The prompts of each task, by its name; None names the only task of a study without tasks.
    """
    written: dict[tuple[str | None, str], dict[str, Mapping[str, Any]]] = {}
    for line in outputs:
        written.setdefault((line["task"], line["run"]), {})[line["prompt"]] = line
    tasks = [
        _Section(number, runs, _texts(runs, prompts.get(runs[0].task, ()), written))
        for number, runs in enumerate(by_task(summaries), start=1)
    ]
    page = _environment().get_template("report.html.jinja")
    return page.render(
        title=study_name,
        tasks=tasks,
        made=_made(summaries),
        charts=charts,
        enough=ENOUGH,
        shown=SHOWN,
    )


def _environment() -> Environment:
    # Prompts and outputs may hold anything: whatever is inserted is escaped.
    return Environment(
        loader=PackageLoader("specdec_core.study", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _made(summaries: Sequence[RunSummary]) -> dict[str, str]:
    """Return what the results were made with: where runs differ, each value once."""
    versions = dict.fromkeys(pair for one in summaries for pair in one.versions.items())
    return {
        "device": ", ".join(dict.fromkeys(one.device for one in summaries)),
        "seed": ", ".join(dict.fromkeys(str(one.seed) for one in summaries)),
        "repeats": str(max((one.repeats for one in summaries), default=0)),
        "versions": ", ".join(f"{name} {version}" for name, version in versions),
    }


class _Section:
    """What the page says on a task.

    Args:
        number: Its number, from 1.
        runs: Its summaries, the baseline first.
        texts: The prompts that are shown, and what was written after them.
    """

    def __init__(self, number: int, runs: Sequence[RunSummary], texts: Sequence[_Shown]) -> None:
        self.number = number
        self.runs = runs
        self.texts = texts
        self.name = runs[0].task
        self.headline = headline(runs)
        self.speed = charts.speed_chart(runs)
        self.shares = charts.share_chart(runs)
        most = charts.greatest(runs)
        curves = [(one.name, charts.alpha_curve(one), charts.gamma_curve(one, most)) for one in runs]
        self.alphas = [(name, curve) for name, curve, _ in curves if curve is not None]
        self.gammas = [(name, curve) for name, _, curve in curves if curve is not None]
        self.results = _html_table(results_table(runs))
        quality = quality_table(runs)
        self.quality = None if quality is None else _html_table(quality)
        self.verdicts = [one for one in runs if one.verdict is not None]
        self.departures = departures(runs)
        self.errors = [one for one in runs if one.error is not None]
        self.failures = [(one.name, failure) for one in runs for failure in _together(one.failures)]

    @property
    def attention(self) -> str:
        """What must not be overlooked, counted; empty if there is nothing."""
        counted = [
            (len(self.departures), "run(s) depart from plain decoding"),
            (len(self.errors), "run(s) failed"),
            (len({name for name, _ in self.failures}), "run(s) had failures of plugins"),
        ]
        return ", ".join(f"{number} {words}" for number, words in counted if number)

    @property
    def plain_speed(self) -> float | None:
        """Tokens a second of plain decoding."""
        return self.runs[0].tokens_per_second

    @property
    def settings(self) -> str:
        """The resolved settings that all its runs share, as JSON."""
        shared = {key: value for key, value in self.runs[0].config.items() if key != "run"}
        return json.dumps(shared, indent=2, ensure_ascii=False)

    @property
    def run_settings(self) -> str:
        """Those of each run, as JSON."""
        runs = [one.config["run"] for one in self.runs if one.name != PLAIN]
        return json.dumps(runs, indent=2, ensure_ascii=False)


def headline(runs: Sequence[RunSummary]) -> str:
    """Return a task's answer in a sentence or two: the fastest run, how much it gains, and what it writes.

    Args:
        runs: The summaries of a task, the baseline among them.
    """
    measured = [one for one in runs if one.name != PLAIN and one.speedup is not None]
    if not measured:
        return "nothing was measured beside plain decoding."
    best = max(measured, key=_speed)
    if _speed(best) > 1:
        said = f"fastest is {best.name}, {_gain(best)}{_writes(best)}."
    else:
        said = f"no run is faster than plain decoding; the fastest is {best.name}, {_gain(best)}{_writes(best)}."
    strict = [one for one in measured if one.lossless]
    if not best.lossless and strict:
        other = max(strict, key=_speed)
        said += f" Of the runs that are not lenient the fastest is {other.name}, {_gain(other)}{_writes(other)}."
    return said


def _speed(one: RunSummary) -> float:
    return one.speedup or 0.0


def _gain(one: RunSummary) -> str:
    said = f"{_speed(one):.2f}× of plain decoding"
    if one.speedup_expected_here is not None:
        said += f" (expected here {one.speedup_expected_here:.2f}×)"
    if one.speedup_min is not None and one.speedup_max is not None and one.speedup_min < 1 < one.speedup_max:
        said += f", though its repeats lie between {one.speedup_min:.2f}× and {one.speedup_max:.2f}×"
    return said


def _writes(one: RunSummary) -> str:
    """Return how a run's outputs stand to those of plain decoding."""
    if not one.lossless:
        return "; it is lenient, so its outputs need not be the target's"
    if one.quality is None:
        return ""
    exact = one.quality["exact"]
    if exact == 1:
        return "; its outputs are plain decoding's"
    if one.config["sampling"]["temperature"] == 0:
        return f"; only {int(100 * exact)}% of its outputs are plain decoding's"
    return "; its outputs are other samples from the target's distribution"


def _together(failures: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Return plugin, message and number of the failures of a run, those with one message together."""
    times: dict[tuple[str, str], int] = {}
    for failure in failures:
        key = (str(failure["plugin"]), str(failure["message"]))
        times[key] = times.get(key, 0) + failure["times"]
    return [(*key, count) for key, count in times.items()]


@dataclass(frozen=True)
class _HtmlTable:
    """A table of the terminal: headings and whether numbers stand below them, rows with their style, notes."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]


def _html_table(table: Table) -> _HtmlTable:
    headings = [str(column.header).replace("-\n", "").replace("\n/", "/") for column in table.columns]
    numbers = [column.justify == "right" for column in table.columns]
    cells = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    styles = [str(row.style or "") for row in table.rows]
    return _HtmlTable(
        tuple((heading.replace("\n", " "), number) for heading, number in zip(headings, numbers, strict=True)),
        tuple(zip(styles, cells, strict=True)),
        tuple(str(table.caption).splitlines()) if table.caption else (),
    )


@dataclass(frozen=True)
class _Written:
    """What a run wrote.

    Attributes:
        run: Name of the run.
        as_plain: Whether plain decoding wrote the same.
        same: The text, as far as it is that of plain decoding at temperature 0, and all of it otherwise.
        other: What follows.
    """

    run: str
    as_plain: bool
    same: str
    other: str = ""


@dataclass(frozen=True)
class _Shown:
    """A prompt with what was written after it; `turns` are those of a chat, with who speaks."""

    id: str
    source: str | None
    text: str | None
    turns: tuple[tuple[str, str], ...]
    references: tuple[str, ...]
    written: tuple[_Written, ...]


def _texts(
    runs: Sequence[RunSummary],
    prompts: Sequence[PromptText],
    written: Mapping[tuple[str | None, str], Mapping[str, Mapping[str, Any]]],
) -> list[_Shown]:
    return [
        _Shown(
            prompt.id,
            prompt.source,
            None if prompt.text is None else _cut(prompt.text, _PROMPT),
            tuple((str(one["role"]), _cut(str(one["content"]), _PROMPT)) for one in prompt.messages or ()),
            tuple(_cut(reference, _PROMPT) for reference in prompt.references),
            tuple(_written_after(prompt.id, runs, written)),
        )
        for prompt in prompts[:SHOWN]
    ]


def _written_after(
    prompt: str,
    runs: Sequence[RunSummary],
    written: Mapping[tuple[str | None, str], Mapping[str, Mapping[str, Any]]],
) -> Iterable[_Written]:
    """Yield what each run wrote after a prompt, plain decoding first; runs that did not get there are left out."""
    plain: str | None = None
    for run in runs:
        line = written.get((run.task, run.name), {}).get(prompt)
        if line is None:
            continue
        text = _shown_text(line)
        if run.name == PLAIN:
            plain = text
        elif not line["as_plain"] and plain is not None and run.config["sampling"]["temperature"] == 0:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(plain, text, strict=False)))
            other = _cut(text[same:], _OUTPUT) or " [ends here]"
            yield _Written(run.name, False, _cut(text[:same], _OUTPUT), other)
            continue
        yield _Written(run.name, run.name != PLAIN and line["as_plain"], _cut(text, _OUTPUT))


def _shown_text(line: Mapping[str, Any]) -> str:
    text = line["text"]
    return f"tokens {', '.join(map(str, line['tokens']))}" if text is None else str(text)


def _cut(text: str, most: int) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} … ({left} more characters)"
