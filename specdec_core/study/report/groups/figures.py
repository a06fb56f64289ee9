"""The figures of each run for each group of prompts, with intervals, and the differences between runs.

Prompts are resampled with replacement, all runs on the same ones, and conversations with all their turns. Speeds
come from whole batches, which have one group each, so batches are resampled for them, and repeats too, as other
repeats would have another median. A difference is tested on the same resamples (`resampled_p`), and the p-values
of all groups and pairs of runs are adjusted together by Holm's method. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from specdec_core.study.config.grouping import Group, batches_of, groups_of
from specdec_core.study.config.prompt_file import conversations
from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.groups.counts import Floats, RunTotals, run_totals
from specdec_core.study.report.quality import holm
from specdec_core.study.report.resampling import MIN_PROMPTS, resampled_interval, resampled_p, resamples
from specdec_core.study.report.verdict import MIN_REPEATS

if TYPE_CHECKING:
    from specdec_core.study.config.prompts import PromptText
    from specdec_core.study.run.repeats import Repeat

Measure: TypeAlias = Literal["block_efficiency", "alpha", "tokens_per_second", "speedup"]
MEASURES: tuple[Measure, ...] = ("block_efficiency", "alpha", "tokens_per_second", "speedup")
"""What is reported of each group, under the names that it has for a whole run."""
TESTED: tuple[Measure, ...] = ("block_efficiency", "speedup")
"""The figures whose differences between runs are tested."""
MAX_COMPARED = 12
"""Runs of a task that are compared pairwise; of more, those with the highest figures over all prompts."""
_SEED = 1


@dataclass(frozen=True)
class Figure:
    """A figure of a run for a group of prompts.

    Attributes:
        value: The figure.
        low: Lower end of its 95% confidence interval over prompts like these; None with too few of them.
        high: Its upper end.
        few: Whether it rests on little: on few prompts or batches, steps, or verified draft tokens.
    """

    value: float
    low: float | None = None
    high: float | None = None
    few: bool = False


@dataclass(frozen=True)
class GroupDifference:
    """The difference between two runs for a group of prompts.

    Attributes:
        other: Name of the other run.
        measure: What differs.
        difference: The figure of the run minus that of the other.
        low: Lower end of the 95% confidence interval of the difference; None with too few prompts or batches.
        high: Its upper end.
        p: Probability of a difference at least this large by chance, adjusted for all groups and pairs of runs of
            the task; None with too few prompts, batches or repeats for a test.
    """

    other: str
    measure: Measure
    difference: float
    low: float | None
    high: float | None
    p: float | None

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
        percentiles: Of its requests, as in `RunRequests`; empty if nothing was measured for each request.
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
            figure = self.figures.get(name)
            ends = (None, None, None) if figure is None else (figure.value, figure.low, figure.high)
            plain |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        plain |= {} if self.quality is None else {"quality": dict(self.quality)}
        plain |= {"percentiles": dict(self.percentiles)} if self.percentiles else {}
        return plain | {"differences": [vars(one) for one in self.differences]}


@dataclass(frozen=True, eq=False)
class _Sampled:
    """A figure with its value in each resample of its units, which are prompts or batches."""

    figure: Figure
    values: Floats
    units: int


_Found: TypeAlias = dict[Measure, _Sampled]


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
    counted = {
        name: run_totals([repeats[number] for number in sorted(numbers)], batches)
        for name, repeats in runs.items()
    }
    known = set(np.flatnonzero(np.all([~np.isnan(one.counts[:, 0]) for one in counted.values()], axis=0)).tolist())
    groups = {group: tuple(n for n in members if n in known) for group, members in groups.items()}
    groups = {group: members for group, members in groups.items() if members}
    found = {}
    for group, members in groups.items():
        begun = {starts[member] for member in members}
        units = [unit for unit, batch in enumerate(batches) if batch[0].start in begun]
        found[group] = _of_group(counted, members, units if speeds else [])
    timed = replayed or len(numbers) >= MIN_REPEATS
    differences = _differences(found, TESTED if timed else TESTED[:1])
    return {
        name: tuple(
            GroupSummary(
                group,
                len(members),
                float(one.counts[list(members), 0].sum()),
                {measure: each.figure for measure, each in found[group][name].items()},
                tuple(differences.get((group, name), ())),
            )
            for group, members in groups.items()
        )
        for name, one in counted.items()
    }


def _of_group(counted: Mapping[str, RunTotals], members: Sequence[int], units: Sequence[int]) -> dict[str, _Found]:
    """Return the figures of each run for a group.

    Args:
        counted: The counts of each run.
        members: The numbers of its conversations.
        units: The numbers of its batches; none if speeds are not known.
    """
    times = _observed_and_resampled(len(members))
    found = {name: dict(_counted(one, one.counts[list(members)], times)) for name, one in counted.items()}
    if not units:
        return found
    times = _observed_and_resampled(len(units))
    chosen = list(units)
    speeds = {name: (times @ one.tokens[chosen]) / (times @ one.seconds[chosen]) for name, one in counted.items()}
    for name, speed in speeds.items():
        found[name] |= dict(_timed(speed, speeds.get(BASELINE), len(units)))
    return found


def _observed_and_resampled(count: int) -> Floats:
    """Return how often each unit counts, `[1 + RESAMPLES, N]`: once in the first row, as resampled in others."""
    return np.vstack([np.ones((1, count)), resamples(count)])


def _counted(run: RunTotals, counts: Floats, times: Floats) -> Iterator[tuple[Measure, _Sampled]]:
    """Yield what counts say: ratios of sums over prompts, which are those over all steps."""
    tokens, steps, accepted, verified = (times @ counts).T
    for measure, part, whole in (("block_efficiency", tokens, steps), ("alpha", accepted, verified)):
        values = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
        few = whole[0] < MIN_COUNT * run.seconds.shape[1]
        yield from _known(measure, values, counts.shape[0], few)  # type: ignore[arg-type]


def _timed(speed: Floats, baseline: Floats | None, units: int) -> Iterator[tuple[Measure, _Sampled]]:
    """Yield what times say: medians over repeats.

    Args:
        speed: `[1 + RESAMPLES, K]`, tokens per second in each repeat.
        baseline: The same of the baseline.
        units: Number of batches.
    """
    repeats = speed.shape[1]
    chosen = np.random.default_rng(_SEED).integers(0, repeats, size=speed.shape)
    chosen[0] = np.arange(repeats)
    yield from _known("tokens_per_second", np.median(np.take_along_axis(speed, chosen, axis=1), axis=1), units)
    if baseline is not None:
        ratio = np.take_along_axis(speed / baseline, chosen, axis=1)
        yield from _known("speedup", np.median(ratio, axis=1), units)


def _known(measure: Measure, values: Floats, units: int, few: bool = False) -> Iterator[tuple[Measure, _Sampled]]:
    """Yield a figure with its interval, if it is known."""
    value = float(values[0])
    if np.isnan(value):
        return
    low, high = _interval(values, units)
    yield measure, _Sampled(Figure(value, low, high, bool(few) or units < MIN_PROMPTS), values, units)


def _interval(values: Floats, units: int) -> tuple[float, float] | tuple[None, None]:
    if units < MIN_PROMPTS or np.isnan(values[1:]).all():
        return None, None
    low, high = resampled_interval(values[1:], units)
    return min(low, float(values[0])), max(high, float(values[0]))


def _differences(
    found: Mapping[Group, Mapping[str, _Found]], testable: Sequence[Measure]
) -> dict[tuple[Group, str], list[GroupDifference]]:
    """Return the differences of each run from those before it, by group and run.

    Args:
        found: The figures of each run for each group, that of all prompts last.
        testable: The measures whose differences can be tested.
    """
    adjusted: dict[tuple[Group, str], list[GroupDifference]] = {}
    for measure in TESTED:
        compared = _compared(found, measure)
        tested = [
            (group, run, _difference(measure, other, figures[run][measure], figures[other][measure]))
            for group, figures in found.items()
            for other, run in combinations(compared, 2)
            if measure in figures[run] and measure in figures[other]
        ]
        found_p = [one.p if measure in testable else None for *_, one in tested]
        for (group, run, one), p in zip(tested, holm(found_p), strict=True):
            adjusted.setdefault((group, run), []).append(replace(one, p=p))
    return adjusted


def _compared(found: Mapping[Group, Mapping[str, _Found]], measure: Measure) -> list[str]:
    """Return the runs whose figures are compared, in the order of the study."""
    overall = list(found.values())[-1]
    # Without drafts every step has one token.
    names = [name for name in overall if measure in overall[name] and (measure == "speedup" or name != BASELINE)]
    best = sorted(names, key=lambda name: -overall[name][measure].figure.value)[:MAX_COMPARED]
    return [name for name in names if name in best]


def _difference(measure: Measure, other: str, run: _Sampled, base: _Sampled) -> GroupDifference:
    values = run.values - base.values
    observed, (low, high) = float(values[0]), _interval(values, run.units)
    return GroupDifference(other, measure, observed, low, high, resampled_p(observed, values[1:], run.units))
