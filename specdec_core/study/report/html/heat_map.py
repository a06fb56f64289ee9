"""Matrices of groups and runs as colored tables, and the prompts behind each cell. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mode
from typing import TYPE_CHECKING

from specdec_core.study.config.grouping import Group, group_label
from specdec_core.study.report.certainty import marked
from specdec_core.study.report.formats import UNKNOWN
from specdec_core.study.report.groups.tables import Cell, Matrix, figure_text

if TYPE_CHECKING:
    from specdec_core.decoding.request_metrics import RequestMetrics
    from specdec_core.study.config.prompts import PromptText

LEVELS = 10
"""Shades of a heat map, beside none."""
_SHOWN, _LEAST = 200, 5
"""Prompts of a task whose texts are shown, and those of each group at least."""
_MAX_STEPS = 400


@dataclass(frozen=True)
class HeatCell:
    """A cell of a heat map.

    Attributes:
        text: The figure.
        interval: Its interval; empty if it is not known.
        level: Its shade, from 0 to `LEVELS`.
        ends: Where the interval begins and ends on the scale of the map, in percent; None if it is not known.
        best: Whether it is the highest of its group, or not told apart from it.
        anchor: The element of the page with the prompts of the cell.
    """

    text: str
    interval: str
    level: int
    ends: tuple[float, float] | None
    best: bool
    anchor: str


@dataclass(frozen=True)
class HeatMap:
    """A matrix as a colored table: the scale goes from its lowest figure to its highest.

    Attributes:
        heading: Its name.
        columns: The columns that group the prompts.
        runs: Names of the runs.
        rows: For each group its values, its number of prompts, and the cell of each run.
    """

    heading: str
    columns: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], int, tuple[HeatCell, ...]], ...]


@dataclass(frozen=True)
class PromptGroup:
    """The prompts of a group, as the page lists them.

    Attributes:
        anchor: The element that lists them.
        label: The group.
        numbers: The numbers of its prompts, from 0.
        shown: Those whose texts are shown.
    """

    anchor: str
    label: str
    numbers: tuple[int, ...]
    shown: tuple[int, ...]


def heat_map(matrix: Matrix, task: int, runs: Sequence[str]) -> HeatMap:
    """Return a matrix as a heat map.

    Args:
        matrix: The matrix.
        task: Number of its task.
        runs: Names of all runs of the task.
    """
    values = [cell.figure.value for _, _, cells in matrix.rows for cell in cells if cell.figure is not None]
    low, high = min(values), max(values)
    numbers = [runs.index(name) for name in matrix.runs]
    groups = leaf_groups([group for group, _, _ in matrix.rows])
    rows = []
    for group, prompts, cells in matrix.rows:
        first = next((index for index, leaf in enumerate(groups) if _within(leaf, group)), 0)
        anchors = [f"group-{task}-{first}-{number}" for number in numbers]
        colored = [_cell(matrix, cell, anchor, low, high) for cell, anchor in zip(cells, anchors, strict=True)]
        rows.append((tuple("all" if value is None else value for value in group), prompts, tuple(colored)))
    return HeatMap(matrix.heading, matrix.columns, matrix.runs, tuple(rows))


def leaf_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the groups that are not unions of others."""
    return [group for group in groups if None not in group]


def _within(leaf: Group, group: Group) -> bool:
    return all(wanted in (None, value) for value, wanted in zip(leaf, group, strict=True))


def _cell(matrix: Matrix, cell: Cell, anchor: str, low: float, high: float) -> HeatCell:
    one = cell.figure
    if one is None:
        return HeatCell(UNKNOWN, "", 0, None, False, anchor)

    def share(value: float) -> float:
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    text = marked(figure_text(matrix.measure, one.value), one.few)
    interval, ends = "", None
    if one.low is not None and one.high is not None:
        interval = f"{figure_text(matrix.measure, one.low)} to {figure_text(matrix.measure, one.high)}"
        ends = 100 * share(one.low), 100 * share(one.high)
    return HeatCell(text, interval, round(LEVELS * share(one.value)), ends, cell.best, anchor)


def prompt_groups(prompts: Sequence[PromptText], groups: Sequence[Group], task: int) -> list[PromptGroup]:
    """Return the groups of a task with their prompts.

    Args:
        prompts: The prompts of the task.
        groups: Its groups, unions among them.
        task: Number of the task.
    """
    leaves = leaf_groups(groups)
    most = max(_LEAST, _SHOWN // max(1, len(leaves)))
    found = []
    for index, group in enumerate(leaves):
        numbers = tuple(number for number, prompt in enumerate(prompts) if prompt.group == group)
        found.append(PromptGroup(f"group-{task}-{index}", group_label(group), numbers, numbers[:most]))
    return found


def trace(metrics: RequestMetrics | None) -> str:
    """Return how many tokens of each draft were accepted; a draft of an unusual length has it behind a slash."""
    if metrics is None or not metrics.per_step_drafted:
        return ""
    pairs = list(zip(metrics.per_step_accepted, metrics.per_step_drafted, strict=True))
    usual = mode(metrics.per_step_drafted)
    steps = [str(n) if drafted == usual else f"{n}/{drafted}" for n, drafted in pairs[:_MAX_STEPS]]
    more = f" … ({len(pairs) - _MAX_STEPS} more)" if len(pairs) > _MAX_STEPS else ""
    return f"Accepted of each draft of {usual}: {' '.join(steps)}{more}"
