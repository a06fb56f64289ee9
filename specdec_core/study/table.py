"""The tables that `compare` prints. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from specdec_core.study.quality import holm
from specdec_core.study.study import PLAIN

if TYPE_CHECKING:
    from specdec_core.study.summary import RunSummary

SCORES = {"bleu": "BLEU", "chrf": "chrF", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""What the scores of texts are called, by their names in results."""
TESTED = "chrF"
"""Whose difference from plain sampling the table shows: of the tested scores the one that fits most languages and
lengths. Results have the others."""

_NOTHING = "–"


def by_task(summaries: Sequence[RunSummary]) -> list[list[RunSummary]]:
    """Return the summaries task by task, each beginning with its baseline."""
    return [list(group) for _, group in groupby(summaries, key=lambda summary: summary.task)]


def results_table(summaries: Sequence[RunSummary]) -> Table:
    """Return the results of a task as a table, the plain baseline in its first row."""
    lenient = any(summary.lenience != 1 for summary in summaries)
    table = Table(
        title=None if summaries[0].task is None else Text(summaries[0].task, style="bold"),
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=_noted(_caption(summaries)),
        caption_justify="left",
    )
    # On a narrow terminal names are folded, numbers never.
    table.add_column("run", overflow="fold")
    table.add_column("drafter", overflow="fold")
    headings = ["γ", *(["l", "devia-\ntion"] if lenient else []), "alpha", "c", "tokens\n/call", "tokens/s"]
    for heading in (*headings, "speed-up", "expected\nhere", "Theorem\n3.8", "best\nγ"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        style = "dim" if summary.name == PLAIN else "red" if summary.error else None
        table.add_row(*_plain(_cells(summary, lenient)), style=style)
    return table


def quality_table(summaries: Sequence[RunSummary]) -> Table | None:
    """Return how good the outputs of a task's runs are; None where there is nothing to compare them with."""
    scored = [
        (summary, summary.quality) for summary in summaries if summary.quality and summary.quality["references"]
    ]
    if not scored:
        return None
    tested = any(quality["differences"] for _, quality in scored)
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    table.add_column("run", overflow="fold")
    for heading in (*SCORES.values(), "as plain", *([f"{TESTED} against plain", "p"] if tested else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    found = [quality["differences"].get(TESTED.lower()) for _, quality in scored]
    adjusted = holm([None if one is None else one["p"] for one in found])
    for (summary, quality), difference, p in zip(scored, found, adjusted, strict=True):
        style = "dim" if summary.name == PLAIN else None
        scores = [_number(quality[name], ".1f") for name in SCORES]
        row = [summary.name, *scores, _share(quality["exact"])]
        row += [_difference(difference), _number(p, ".2f")] if tested else []
        table.add_row(*_plain(row), style=style)
    notes = ["p: of a difference this large by chance, adjusted for the number of runs (Holm)."] if tested else []
    notes += [quality["note"] for _, quality in scored if quality["note"]]
    table.caption = _noted("\n".join(dict.fromkeys(notes))) if notes else None
    return table


def _difference(found: Mapping[str, float | None] | None) -> str:
    """Return the difference of a score with its confidence interval."""
    if found is None:
        return _NOTHING
    interval = "" if found["low"] is None else f" ({found['low']:+.1f} to {found['high']:+.1f})"
    return f"{found['difference']:+.1f}{interval}"


def departures(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each strict argmax run that wrote anything else than plain decoding did."""
    return [_departure(summary) for summary in summaries if _departs(summary)]


def _departs(summary: RunSummary) -> bool:
    argmax = summary.config["sampling"]["temperature"] == 0
    return argmax and summary.lossless and summary.quality is not None and summary.quality["exact"] < 1


def _departure(summary: RunSummary) -> str:
    assert summary.quality is not None, "only what was decoded departs"
    prompt, token = summary.quality["first_difference"]
    return (
        f"{summary.name}: {_share(1 - summary.quality['exact'])} of its texts are not those of plain decoding, "
        f"from token {token + 1} of prompt {prompt + 1} on. At temperature 0 that must not be, but where two "
        "tokens are equally probable to the last bits: forwards over more tokens round otherwise. "
        "`dtype: float32` makes it rare."
    )


def verdicts(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run but the baseline: why it is as fast as it is."""
    said = [(summary.name, summary.verdict) for summary in summaries if summary.verdict is not None]
    return [f"{name}: {verdict}." for name, verdict in said]


def _cells(summary: RunSummary, lenient: bool) -> list[str]:
    name = f"{summary.name} (failed)" if summary.error else summary.name
    speed = (summary.tokens_per_second, summary.tokens_per_second_min, summary.tokens_per_second_max)
    return [
        name,
        summary.drafter or _NOTHING,
        str(summary.gamma) if summary.drafter else _NOTHING,
        *([str(summary.lenience), _number(summary.deviation, ".2f")] if lenient else []),
        _number(summary.alpha, ".2f"),
        _number(summary.c, ".3f"),
        _number(summary.block_efficiency, ".2f"),
        _with_spread(*speed, ".1f"),
        _with_spread(summary.speedup, summary.speedup_min, summary.speedup_max, ".2f", "×"),
        _number(summary.speedup_expected_here, ".2f", "×"),
        _number(summary.speedup_expected, ".2f", "×"),
        _number(summary.gamma_best, "d"),
    ]


def _plain(cells: Sequence[str]) -> list[Text]:
    """Return cells that are shown as they are: in a bare string, rich would read `[...]` as a style."""
    return [Text(cell) for cell in cells]


def _noted(text: str) -> Text:
    return Text(text, style="table.caption")


def _share(value: float) -> str:
    """Return a share in percent; only what is none or all is called 0% or 100%."""
    shown = f"{value:.0%}"
    if shown == "100%" and value < 1:
        return "> 99%"
    return "< 1%" if shown == "0%" and value > 0 else shown


def _number(value: float | None, form: str, unit: str = "") -> str:
    return _NOTHING if value is None else f"{value:{form}}{unit}"


def _with_spread(middle: float | None, least: float | None, most: float | None, form: str, unit: str = "") -> str:
    if middle is None or least is None or most is None:
        return _NOTHING
    return f"{middle:{form}}{unit} ±{(most - least) / 2:{form}}"


def _caption(summaries: Sequence[RunSummary]) -> str:
    repeats = max((summary.repeats for summary in summaries), default=0)
    lines = [
        f"Median of {repeats} repeat(s) ± half their range.",
        "Theorem 3.8: with the run's alpha and c, if verifying a draft cost no more than a plain call.",
        "Expected here, best γ: with what verifying, drafting and the framework took on this machine.",
    ]
    if any(summary.lenience != 1 for summary in summaries):
        lines.append("l: lenience; deviation: total variation from the target's distribution, a sequence.")
    return "\n".join(lines)
