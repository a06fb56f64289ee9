"""The table that `compare` prints. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from specdec_core.study.study import PLAIN

if TYPE_CHECKING:
    from specdec_core.study.summary import RunSummary

_NOTHING = "–"


def results_table(summaries: Sequence[RunSummary]) -> Table:
    """Return the results as a table, the plain baseline in its first row."""
    lenient = any(summary.lenience != 1 for summary in summaries)
    table = Table(
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=_caption(summaries),
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
        table.add_row(*_cells(summary, lenient), style=style)
    return table


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
