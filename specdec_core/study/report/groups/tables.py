"""The matrices of a task, a figure of each run for each group, and which differences are more than luck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.study.config.grouping import Group, group_label
from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.certainty import marked
from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.formats import UNKNOWN, number, rate, with_spread
from specdec_core.study.report.groups.figures import (
    MAX_COMPARED,
    MEASURES,
    TESTED,
    Figure,
    GroupDifference,
    Measure,
)
from specdec_core.study.report.layout import Column, ReportTable, Row
from specdec_core.study.report.resampling import MIN_PROMPTS

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

_HEADINGS: dict[Measure, str] = {
    "block_efficiency": "Block efficiency",
    "alpha": "Acceptance rate",
    "tokens_per_second": "Tokens/s",
    "speedup": "Speed-up",
}
_BEST = "*"
SCORE = "chrf"
"""The score that the tables show, as that of a whole run."""


@dataclass(frozen=True)
class Cell:
    """The figure of a run for a group.

    Attributes:
        figure: The figure; None if it is not known.
        best: Whether it is the highest of its group, or not told apart from it.
    """

    figure: Figure | None
    best: bool = False


@dataclass(frozen=True)
class Matrix:
    """A figure of each run for each group.

    Attributes:
        measure: The figure.
        heading: Its name, and the columns that group the prompts.
        columns: Those columns.
        runs: Names of the runs.
        rows: For each group its number of prompts, and the cell of each run.
        expected: Whether its speeds are expected ones.
    """

    measure: Measure
    heading: str
    columns: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[tuple[Group, int, tuple[Cell, ...]], ...]
    expected: bool = False


def matrices(summaries: Sequence[RunSummary]) -> list[Matrix]:
    """Return a matrix for each figure that is known of a task's groups; none if its prompts have no groups."""
    grouped = [one for one in summaries if one.groups]
    return [found for measure in MEASURES if (found := _matrix(grouped, measure)) is not None]


def grouping_columns(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return the columns that group the prompts of a task."""
    return tuple(summaries[0].config["prompts"]["group"])


def _matrix(summaries: Sequence[RunSummary], measure: Measure) -> Matrix | None:
    # Without drafts a step has one token, and the speed-up is 1.
    runs = [one for one in summaries if one.name != BASELINE or measure == "tokens_per_second"]
    runs = [one for one in runs if any(measure in group.figures for group in one.groups)]
    if not runs:
        return None
    columns = grouping_columns(runs)
    expected = runs[0].replayed is not None and measure in ("tokens_per_second", "speedup")
    heading = f"Expected {_HEADINGS[measure].lower()}" if expected else _HEADINGS[measure]
    rows = []
    for index, group in enumerate(runs[0].groups):
        best = set(_best(runs, index, measure)) if measure in TESTED and len(runs) > 1 else set()
        cells = tuple(Cell(one.groups[index].figures.get(measure), one.name in best) for one in runs)
        rows.append((group.group, group.prompts, cells))
    return Matrix(
        measure,
        f"{heading} by {' and '.join(columns)}",
        columns,
        tuple(one.name for one in runs),
        tuple(rows),
        expected,
    )


def _best(runs: Sequence[RunSummary], index: int, measure: Measure) -> Iterator[str]:
    """Yield the run with the highest figure of a group and those not told apart from it, if this was tested."""
    figures = {
        one.name: one.groups[index].figures[measure] for one in runs if measure in one.groups[index].figures
    }
    first = max(figures, key=lambda name: figures[name].value, default=None)
    if first is None:
        return
    tested = [(run, one) for run, one in _differences(runs, index, measure) if one.p is not None]
    for run, one in tested:
        if first in (run, one.other):
            yield first
            if not one.told_apart:
                yield one.other if run == first else run


def _differences(
    runs: Sequence[RunSummary], index: int, measure: Measure
) -> Iterator[tuple[str, GroupDifference]]:
    for one in runs:
        yield from ((one.name, found) for found in one.groups[index].differences if found.measure == measure)


def figure_text(measure: Measure, value: float) -> str:
    """Return a figure in its digits."""
    if measure == "alpha":
        return rate(value)
    return number(value, *{"tokens_per_second": (1,), "speedup": (2, "×")}.get(measure, (2,)))  # type: ignore[arg-type]


def matrix_tables(summaries: Sequence[RunSummary]) -> list[ReportTable]:
    """Return the matrices of a task as tables for a terminal, the last with the notes on all of them."""
    found = matrices(summaries)
    return [_table(one, matrix_notes(found) if one is found[-1] else ()) for one in found]


def _table(matrix: Matrix, notes: Sequence[str]) -> ReportTable:
    labels = [Column(name, numeric=False) for name in matrix.columns]
    rows = [
        Row(
            (*_labels(group), str(prompts), *(_cell_text(matrix.measure, cell) for cell in cells)),
            "dim" if None in group else "",
        )
        for group, prompts, cells in matrix.rows
    ]
    columns = (*labels, Column("prompts"), *map(Column, matrix.runs))
    return ReportTable(columns, tuple(rows), tuple(notes), matrix.heading, stub=len(labels) + 1)


def quality_by_group(summaries: Sequence[RunSummary]) -> ReportTable | None:
    """Return the scores of each run by group; None without groups, or without references."""
    runs = [one for one in summaries if any(SCORE in (group.quality or {}) for group in one.groups)]
    if not runs:
        return None
    columns = grouping_columns(runs)
    rows = []
    for index, group in enumerate(runs[0].groups):
        scores = (number((one.groups[index].quality or {}).get(SCORE), 1) for one in runs)
        rows.append(Row((*_labels(group.group), *scores), "dim" if None in group.group else ""))
    labels = [Column(name, numeric=False) for name in columns]
    title = f"chrF by {' and '.join(columns)}"
    return ReportTable((*labels, *(Column(one.name) for one in runs)), tuple(rows), (), title, stub=len(labels))


def _labels(group: Group) -> tuple[str, ...]:
    return tuple("all" if value is None else value for value in group)


def _cell_text(measure: Measure, cell: Cell) -> str:
    if cell.figure is None:
        return UNKNOWN
    digits = 1 if measure == "tokens_per_second" else 2
    unit = "×" if measure == "speedup" else ""
    one = cell.figure
    return (_BEST if cell.best else "") + marked(with_spread(one.value, one.low, one.high, digits, unit), one.few)


def matrix_notes(found: Sequence[Matrix]) -> list[str]:
    """Return what the intervals and marks of some matrices mean."""
    cells = [cell for one in found for _, _, row in one.rows for cell in row]
    timed = any(one.measure == "tokens_per_second" and not one.expected for one in found)
    also = "; of speeds, over repeats too" if timed else ""
    notes = [f"± half the 95% confidence interval over prompts like these{also}."]
    if any(cell.best for cell in cells):
        notes.append(f"{_BEST}: the highest of its group, and those that are not told apart from it.")
    if any(cell.figure is not None and cell.figure.few for cell in cells):
        notes.append(
            f"~: rests on fewer than {MIN_COUNT} steps or verified draft tokens, or on fewer than {MIN_PROMPTS} "
            "prompts, or batches for speeds, which are too few for an interval."
        )
    return notes


def nothing_known(summaries: Sequence[RunSummary]) -> str | None:
    """Return why the figures, or the speeds, of a task's groups are missing; None if they are not."""
    grouped = [one for one in summaries if one.groups]
    if not grouped or any("tokens_per_second" in group.figures for one in grouped for group in one.groups):
        return None
    if grouped[0].beams:
        return "By group nothing is known with beams, where one draft serves all beams of a prompt."
    if grouped[0].config.get("timing") is False or grouped[0].replayed is not None:
        return None
    return "No speeds by group: batches may have been decoded in parts (`auto_find_batch_size`)."


def findings(summaries: Sequence[RunSummary], most: int | None = None) -> list[str]:
    """Return which differences between runs are more than luck, a line for each figure and pair of runs.

    Args:
        summaries: The summaries of the runs of a task.
        most: The most lines; None for all.
    """
    runs = [one for one in summaries if one.groups]
    lines = [line for measure in TESTED for line in _lines(runs, measure)]
    if not lines:
        return []
    columns = " and ".join(grouping_columns(runs))
    head = (
        f"Differences by {columns} that are more than luck (paired bootstrap over prompts, p below 0.05 after "
        "Holm's correction for all groups and pairs of runs):"
    )
    rest = [] if most is None or len(lines) <= most else [f"{len(lines) - most} more pairs are in the results."]
    if sum(one.name != BASELINE for one in runs) > MAX_COMPARED:
        rest.append(f"Of more than {MAX_COMPARED} runs, those with the highest figures are compared.")
    return [head, *lines[:most], *rest]


def _lines(runs: Sequence[RunSummary], measure: Measure) -> Iterator[str]:
    pairs: dict[tuple[str, str], list[tuple[str, GroupDifference]]] = {}
    for index, group in enumerate(runs[0].groups if runs else ()):
        for run, one in _differences(runs, index, measure):
            pairs.setdefault((run, one.other), []).append((group_label(group.group), one))
    for (run, other), found in pairs.items():
        yield f"{_HEADINGS[measure]}, {run} against {other}: {_told(found, measure)}."


def _told(found: Sequence[tuple[str, GroupDifference]], measure: Measure) -> str:
    """Return where one run is above the other, where below, and where neither is known."""
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        named = [
            f"{label} ({difference_text(measure, one.difference)})"
            for label, one in found
            if one.told_apart and one.difference * sign > 0
        ]
        parts += [f"{word} in {', '.join(named)}"] if named else []
    same = sum(one.p is not None and not one.told_apart for _, one in found)
    untested = sum(one.p is None for _, one in found)
    parts += [f"not told apart in {same} of {len(found)}"] if same else []
    parts += [f"too few prompts or repeats to test {untested} of {len(found)}"] if untested else []
    return "; ".join(parts)


def difference_text(measure: Measure, value: float) -> str:
    """Return a difference with its sign, in the digits of its figure."""
    return f"{'+' if value >= 0 else '−'}{figure_text(measure, abs(value))}"


def difference_tables(summaries: Sequence[RunSummary]) -> list[tuple[str, ReportTable]]:
    """Return a table of the differences between all compared runs, with a heading, for each figure tested."""
    runs = [one for one in summaries if one.groups]
    found = []
    for measure in TESTED:
        pairs = [(run, one.other) for run, one in _differences(runs, -1, measure)] if runs else []
        rows = []
        for index, group in enumerate(runs[0].groups if pairs else ()):
            by_pair = {(run, one.other): one for run, one in _differences(runs, index, measure)}
            cells = (_difference_cell(by_pair.get(pair), measure) for pair in pairs)
            rows.append(Row((group_label(group.group), *cells)))
        if pairs:
            columns = (Column("group", numeric=False), *(Column(f"{run} − {other}") for run, other in pairs))
            note = "p: adjusted for all groups and pairs of runs (Holm)."
            found.append(
                (f"Differences in {_HEADINGS[measure].lower()}", ReportTable(columns, tuple(rows), (note,)))
            )
    return found


def _difference_cell(one: GroupDifference | None, measure: Measure) -> str:
    if one is None:
        return UNKNOWN
    text = difference_text(measure, one.difference)
    if one.low is not None and one.high is not None:
        text += f" ({difference_text(measure, one.low)} to {difference_text(measure, one.high)})"
    return text + (", not tested" if one.p is None else f", p {number(one.p, 3)}")
