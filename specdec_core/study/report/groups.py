"""Results by group of prompts: figures with intervals, differences between runs, and their tables; without torch.

Every figure is a ratio of sums: over prompts, or over batches for speeds, as a batch has one group. A conversation
with all its turns counts as one prompt. Runs are compared on the same prompts (`ratio_units`), and the p-values of
all groups and pairs of runs are adjusted together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from specdec_core.study.config.grouping import Group, batches_of, belongs, group_label, groups_of
from specdec_core.study.config.prompt_file import PromptText, conversations
from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.certainty import marked
from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.formats import UNKNOWN, number, rate, with_spread
from specdec_core.study.report.layout import Column, ReportTable, Row
from specdec_core.study.report.paired import MIN_PROMPTS, Estimate, Floats, adjusted, estimate, ratio_units
from specdec_core.study.report.quality import METRICS, assess
from specdec_core.study.report.verdict import MIN_REPEATS

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary
    from specdec_core.study.run.finished_repeats import Repeat

Measure: TypeAlias = Literal["block_efficiency", "alpha", "tokens_per_second", "speedup"]
MEASURES: dict[Measure, str] = {
    "block_efficiency": "Block efficiency",
    "alpha": "Acceptance rate",
    "tokens_per_second": "Tokens/s",
    "speedup": "Speed-up",
}
"""What is reported of each group, under the names that it has for a whole run, and the headings."""
TESTED: tuple[Measure, ...] = ("block_efficiency", "speedup")
"""The figures whose differences between runs are tested."""
MAX_COMPARED = 12
"""Runs of a task that are compared pairwise; of more, those with the highest figures over all prompts."""
LEVELS = 10
"""Shades of the cells of a table in the report, beside none."""


@dataclass(frozen=True)
class Figure(Estimate):
    """A figure of a run for a group of prompts, over prompts like these.

    Attributes:
        few: Whether it rests on little: on few prompts or batches, steps, or verified draft tokens.
    """

    few: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupDifference(Estimate):
    """A figure of a run minus that of another, for a group of prompts.

    The p-value is adjusted for all groups and pairs of runs of the task; None with too few prompts, batches or
    repeats for a test.

    Attributes:
        other: Name of the other run.
        measure: What differs.
    """

    other: str
    measure: Measure

    @property
    def told_apart(self) -> bool:
        """Whether the difference is more than luck: its adjusted p-value is below 0.05."""
        return self.p is not None and self.p < 0.05


@dataclass(frozen=True)
class GroupSummary:
    """The findings about a run for one group of prompts.

    Attributes:
        group: A value for each column that groups the prompts; None stands for all values.
        prompts: Number of its prompts; a conversation counts as one.
        tokens: New tokens, over all repeats.
        figures: What is known of `MEASURES`.
        differences: How it differs from the runs before it in its task.
        quality: How its outputs compare with those of the baseline and with references: `exact`, and the scores if
            there are references. None for a replay.
        percentiles: Of its requests, as those of the run; empty if nothing was measured for each request.
    """

    group: Group
    prompts: int
    tokens: float
    figures: Mapping[Measure, Figure]
    differences: tuple[GroupDifference, ...] = ()
    quality: Mapping[str, float] | None = None
    percentiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Return the findings as `results.jsonl` has them; figures have the names that they have for a run."""
        plain: dict[str, Any] = {"group": list(self.group), "prompts": self.prompts, "tokens": self.tokens}
        for name in MEASURES:
            one = self.figures.get(name)
            ends = (None, None, None) if one is None else (one.value, one.low, one.high)
            plain |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        differences = [asdict(one) for one in self.differences]
        return plain | {"quality": self.quality, "percentiles": self.percentiles, "differences": differences}


_Units: TypeAlias = dict[Measure, Floats]
"""For each figure that is known, a value for each prompt or batch, whose mean is the figure."""


class _Totals:
    """The counts of a run for N conversations and its times for U batches, summed over its repeats.

    Args:
        repeats: Its repeats, at least one.
        batches: The conversations of each batch, and of each conversation the numbers of its prompts, from 0.

    Attributes:
        counts: `[N, 4]` float64: tokens, steps, accepted and verified draft tokens. NaN where one is not known.
        times: `[U, 2]` float64, the tokens of each batch and its wall time; NaN where nothing was timed.
    """

    def __init__(self, repeats: Collection[Repeat], batches: Sequence[Sequence[range]]) -> None:
        talks = sorted((talk for batch in batches for talk in batch), key=lambda talk: talk.start)
        number = sum(map(len, talks))
        found = [_measured(repeat, number) for repeat in repeats]
        each, seconds = np.sum(found, axis=0), [one[:, 4] for one in found]
        self.repeats = len(repeats)
        self.counts: Floats = np.array([each[list(talk), :4].sum(axis=0) for talk in talks])
        self.times: Floats = np.array(
            [
                (sum(each[list(talk), 0].sum() for talk in batch), sum(_batch_seconds(s, batch) for s in seconds))
                for batch in batches
            ]
        )

    def units(self, baseline: _Totals | None, members: Sequence[int], batches: Sequence[int]) -> _Units:
        """Return the units of each figure for some conversations and batches."""
        tokens, steps, accepted, verified = self.counts[list(members)].T
        found: dict[Measure, Floats | None] = {
            "block_efficiency": ratio_units([tokens], [steps]),
            "alpha": ratio_units([accepted], [verified]),
        }
        if len(batches):
            own, seconds = self.times[list(batches)].T
            found["tokens_per_second"] = ratio_units([own], [seconds])
            if baseline is not None:
                theirs, took = baseline.times[list(batches)].T
                found["speedup"] = ratio_units([own, took], [seconds, theirs])
        return {measure: units for measure, units in found.items() if units is not None}


def _measured(repeat: Repeat, number: int) -> Floats:
    """Return `[N, 5]`, the counts of one repeat and the time of each prompt."""
    found = np.full((number, 5), np.nan)
    if repeat.by_prompt:
        found[:, : len(repeat.by_prompt[0])] = repeat.by_prompt
        return found
    for index, output in enumerate(repeat.outputs):
        found[index, 0] = output.num_tokens
        if (metrics := output.metrics) is not None:
            accepted = metrics.num_accepted_draft_tokens
            rejected = np.nan if metrics.rejected is None else metrics.rejected
            found[index, 1:4] = metrics.steps, accepted, accepted + rejected
    found[: len(repeat.request_seconds), 4] = repeat.request_seconds
    return found


def _batch_seconds(seconds: Floats, batch: Sequence[range]) -> float:
    """Return the time of a batch: its turns one after the other, each as long as its longest request."""
    turns = ([talk[turn] for talk in batch if turn < len(talk)] for turn in range(max(map(len, batch))))
    return float(sum(seconds[together].max() for together in turns))


def summarize_groups(
    prompts: Sequence[PromptText],
    runs: Mapping[str, Mapping[int, Repeat]],
    batch_size: int,
    *,
    speeds: bool = True,
) -> dict[str, tuple[GroupSummary, ...]]:
    """Return the findings for each group of a task's prompts, by run; nothing if no column groups them.

    Args:
        prompts: The prompts of the task.
        runs: The repeats of each run, by number. Runs that failed are left out, and others without the baseline.
        batch_size: Number of conversations that were decoded together.
        speeds: Whether the time of a batch is known.
    """
    starts = [talk.start for talk in conversations(prompts)]
    groups = groups_of([prompts[start] for start in starts])
    numbers = set.intersection(*map(set, runs.values())) if runs else set()
    if not groups or not numbers:
        return {}
    replayed = any(one.by_prompt for repeats in runs.values() for one in repeats.values())
    batches = batches_of(prompts, 1 if replayed else batch_size)
    totals = {name: _Totals([each[number] for number in sorted(numbers)], batches) for name, each in runs.items()}
    known = np.all([~np.isnan(one.counts[:, 0]) for one in totals.values()], axis=0)
    members = {group: [n for n in found if known[n]] for group, found in groups.items()}
    units: dict[Group, dict[str, _Units]] = {}
    for group, own in members.items():
        begun = {starts[member] for member in own}
        timed = [unit for unit, batch in enumerate(batches) if batch[0].start in begun] if speeds else []
        if own:
            units[group] = {name: one.units(totals.get(BASELINE), own, timed) for name, one in totals.items()}
    differences = _differences(units, TESTED if replayed or len(numbers) >= MIN_REPEATS else TESTED[:1])
    found = {
        name: tuple(
            GroupSummary(
                group,
                len(members[group]),
                float(one.counts[members[group], 0].sum()),
                {measure: _figure(measure, one, members[group], own) for measure, own in of_runs[name].items()},
                tuple(differences.get((group, name), ())),
            )
            for group, of_runs in units.items()
        )
        for name, one in totals.items()
    }
    if replayed:  # the texts are those of the record
        return found
    baseline = runs.get(BASELINE, {})
    return {name: tuple(_with_requests(own, prompts, runs[name], baseline)) for name, own in found.items()}


def _figure(measure: Measure, run: _Totals, members: Sequence[int], units: Floats) -> Figure:
    found = estimate(units)
    enough = {"block_efficiency": 1, "alpha": 3}.get(measure)
    counted = np.inf if enough is None else float(run.counts[list(members), enough].sum())
    few = len(units) < MIN_PROMPTS or counted < MIN_COUNT * run.repeats
    return Figure(**vars(found), few=few)


def _differences(
    units: Mapping[Group, Mapping[str, _Units]], testable: Sequence[Measure]
) -> dict[tuple[Group, str], list[GroupDifference]]:
    """Return the differences of each run from those before it, by group and run.

    Args:
        units: Those of each run for each group, that of all prompts last.
        testable: The measures whose differences can be tested.
    """
    found: dict[tuple[Group, str], list[GroupDifference]] = {}
    for measure in TESTED:
        whole = {name: own[measure].mean() for name, own in list(units.values())[-1].items() if measure in own}
        if measure != "speedup":  # without drafts every step has one token
            whole.pop(BASELINE, None)
        best = sorted(whole, key=lambda name: -whole[name])[:MAX_COMPARED]
        pairs = [
            (group, run, other, estimate(of_runs[run][measure] - of_runs[other][measure]))
            for group, of_runs in units.items()
            for other, run in combinations([name for name in whole if name in best], 2)
            if measure in of_runs[run] and measure in of_runs[other]
        ]
        p_values = adjusted([one.p if measure in testable else None for *_, one in pairs])
        for (group, run, other, one), p in zip(pairs, p_values, strict=True):
            difference = GroupDifference(**{**vars(one), "p": p}, other=other, measure=measure)
            found.setdefault((group, run), []).append(difference)
    return found


def _with_requests(
    groups: Sequence[GroupSummary],
    prompts: Sequence[PromptText],
    repeats: Mapping[int, Repeat],
    baseline: Mapping[int, Repeat],
) -> Iterator[GroupSummary]:
    """Yield the findings about each group with its quality and percentiles. Scores are not tested."""
    from specdec_core.study.report.requests import run_requests  # imports torch

    for group in groups:
        numbers = [number for number, prompt in enumerate(prompts) if belongs(prompt.group, group.group)]
        own, others = ({n: _only(one, numbers) for n, one in each.items()} for each in (repeats, baseline))
        outputs, expected = ({n: one.outputs for n, one in each.items()} for each in (own, others))
        quality = assess(outputs, expected, [prompts[number].references for number in numbers], greedy=True)
        scores = {name: getattr(quality, name) for name in ("exact", *METRICS)} if quality else {}
        known = {name: value for name, value in scores.items() if value is not None}
        yield replace(group, quality=known or None, percentiles=run_requests(own)["percentiles"])


def _only(repeat: Repeat, numbers: Sequence[int]) -> Repeat:
    """Return a repeat with the outputs and times of some prompts."""
    outputs = tuple(repeat.outputs[number] for number in numbers if number < len(repeat.outputs))
    seconds = tuple(repeat.request_seconds[number] for number in numbers if number < len(repeat.request_seconds))
    return replace(repeat, outputs=outputs, request_seconds=seconds)


def large_groups(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the summaries with the groups that have prompts enough to be judged; none with all prompts alone."""
    found = [replace(one, groups=tuple(g for g in one.groups if g.prompts >= MIN_PROMPTS)) for one in summaries]
    return found if any(set(group.group) - {None} for one in found for group in one.groups) else []


def group_tables(summaries: Sequence[RunSummary]) -> list[ReportTable]:
    """Return a table of groups and runs for each figure that is known; none if the prompts have no groups."""
    grouped = [one for one in summaries if one.groups]
    tables = [_figures(grouped, measure) for measure in MEASURES]
    found = [table for table in (*tables, _scores(grouped)) if table is not None]
    if found:
        found[-1] = replace(found[-1], notes=_notes(found))
    return found


def _notes(tables: Sequence[ReportTable]) -> tuple[str, ...]:
    cells = [cell for table in tables for row in table.rows for cell in row.cells]
    notes = ["± half the 95% confidence interval over prompts like these; of speeds, over batches."]
    if any(cell.startswith("*") for cell in cells):
        notes.append("*: the highest of its group, and those that are not told apart from it.")
    if any("~" in cell for cell in cells):
        few = f"fewer than {MIN_COUNT} steps or verified draft tokens, or {MIN_PROMPTS} prompts or batches"
        notes.append(f"~: rests on {few}.")
    return tuple(notes)


def _figures(runs: Sequence[RunSummary], measure: Measure) -> ReportTable | None:
    # Without drafts a step has one token, and the speed-up is 1.
    runs = [one for one in runs if one.name != BASELINE or measure == "tokens_per_second"]
    runs = [one for one in runs if any(measure in group.figures for group in one.groups)]
    rows = []
    for index in range(len(runs[0].groups) if runs else 0):
        best = set(_best(runs, index, measure)) if measure in TESTED and len(runs) > 1 else set()
        figures = [one.groups[index].figures.get(measure) for one in runs]
        cells = [
            ("*" if run.name in best else "") + _text(measure, one) for run, one in zip(runs, figures, strict=True)
        ]
        rows.append((cells, [None if one is None else one.value for one in figures]))
    replayed = bool(runs) and runs[0].replayed is not None and measure in ("tokens_per_second", "speedup")
    return _matrix(f"Expected {MEASURES[measure].lower()}" if replayed else MEASURES[measure], runs, rows)


def _scores(runs: Sequence[RunSummary]) -> ReportTable | None:
    runs = [one for one in runs if any("chrf" in (group.quality or {}) for group in one.groups)]
    scores = [
        [(one.groups[index].quality or {}).get("chrf") for one in runs]
        for index in range(len(runs[0].groups) if runs else 0)
    ]
    return _matrix("chrF", runs, [([number(value, 1) for value in row], row) for row in scores])


def _matrix(
    heading: str, runs: Sequence[RunSummary], rows: Sequence[tuple[Sequence[str], Sequence[float | None]]]
) -> ReportTable | None:
    """Return a table with a row for each group and a column for each run, shaded by the values of its cells."""
    values = [value for _, row in rows for value in row if value is not None]
    if not values:
        return None
    names = runs[0].config["prompts"]["group"]
    low, span = min(values), (max(values) - min(values)) or 1.0
    found = []
    for group, (cells, row) in zip(runs[0].groups, rows, strict=True):
        labels = ["all" if value is None else value for value in group.group]
        shades = [0 if value is None else round(LEVELS * (value - low) / span) for value in row]
        found.append(
            Row(
                (*labels, str(group.prompts), *cells),
                "dim" if None in group.group else "",
                (*[0] * (len(labels) + 1), *shades),
            )
        )
    columns = (*(Column(name, numeric=False) for name in names), Column("prompts"))
    return ReportTable(
        (*columns, *(Column(one.name) for one in runs)),
        tuple(found),
        title=f"{heading} by {' and '.join(names)}",
    )


def _best(runs: Sequence[RunSummary], index: int, measure: Measure) -> Iterator[str]:
    """Yield the run with the highest figure of a group and those not told apart from it, if this was tested."""
    figures = {one.name: one.groups[index].figures.get(measure, Figure(0.0)).value for one in runs}
    first = max(figures, key=figures.__getitem__)
    for run in runs:
        for one in run.groups[index].differences:
            if one.measure == measure and one.p is not None and first in (run.name, one.other):
                yield first
                if not one.told_apart:
                    yield one.other if run.name == first else run.name


def difference_table(summaries: Sequence[RunSummary]) -> ReportTable | None:
    """Return the differences between runs that are more than luck; None if nothing was tested."""
    tested = [
        (run, group, one)
        for run in summaries
        for group in run.groups
        for one in group.differences
        if one.p is not None
    ]
    rows = [
        Row(
            (
                *(MEASURES[one.measure], group_label(group.group), run.name, one.other),
                *(_signed(one.measure, value) for value in (one.value, one.low, one.high)),
                number(one.p, 3),
            )
        )
        for run, group, one in tested
        if one.told_apart
    ]
    if not tested:
        return None
    note = f"{len(rows)} of {len(tested)} differences have p below 0.05, adjusted for their number."
    names = (Column(name, numeric=False) for name in ("figure", "group", "run", "against"))
    columns = (*names, *map(Column, ("difference", "from", "to", "p")))
    return ReportTable(columns, tuple(rows), (note,), "Differences between runs by group")


def _text(measure: Measure, one: Figure | None) -> str:
    if one is None:
        return UNKNOWN
    digits, unit = {"tokens_per_second": (1, ""), "speedup": (2, "×")}.get(measure, (2, ""))
    if measure == "alpha" and one.low is None:
        return marked(rate(one.value), one.few)
    return marked(with_spread(one.value, one.low, one.high, digits, unit), one.few)


def _signed(measure: Measure, value: float | None) -> str:
    text = _text(measure, None if value is None else Figure(abs(value)))
    return text if value is None else f"{'+' if value >= 0 else '−'}{text}"
