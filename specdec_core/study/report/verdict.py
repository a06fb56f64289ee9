"""The verdict on the runs of a task: which is fastest, as far as the numbers tell. Imports no torch.

A timing counts only for what it can show:

- Two runs are told apart if the intervals of their speed-ups do not overlap (`speedup_low`, `speedup_high`). Up to
  eight repeats the intervals are the ranges of the repeats, and ranges that do not overlap are the most extreme
  outcome of the Mann-Whitney test: with three repeats, two equally fast runs come apart like this once in ten
  times.
- Fewer than three repeats tell nothing apart.
- A run that exceeds its bound (`speedup_bound`) was not timed correctly, and is not ranked.
- A run that failed is not ranked, nor is one that keeps state between repeats without declaring it.

Where nothing was timed, runs are ranked by their tokens per forward pass of the target.

References:
    H. B. Mann, D. R. Whitney: On a Test of Whether one of Two Random Variables is Stochastically Larger than the
    Other, Annals of Mathematical Statistics 18, 1947.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.formats import share

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

MIN_REPEATS = 3
"""Fewer repeats tell no runs apart."""
MAX_EXCESS = 1.03
"""A speed-up above the run's bound by more than this factor is reported; below, it is the noise of any clock."""
MAX_WAITING = 0.1
"""A larger share of the wall time in which the decoding thread waited for a core is reported."""
_MOST_NAMES = 4
"""Runs that are not told apart of which the verdict names no more."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a study on the runs of a task.

    Attributes:
        answer: Which run is fastest, or which cannot be told apart.
        errors: A line for each run that was abandoned, with the reason.
        failures: A line for each way in which a plugin failed, with its file and line.
        departures: A line for each lossless run at temperature 0 whose outputs are not those of the baseline.
        warnings: Lines about plugins that were overruled, and about runs whose numbers are in doubt.
    """

    answer: str
    errors: tuple[str, ...]
    failures: tuple[str, ...]
    departures: tuple[str, ...]
    warnings: tuple[str, ...]


def verdict(runs: Sequence[RunSummary]) -> Verdict:
    """Return the verdict on a task.

    Args:
        runs: The summaries of its runs, including the baseline.
    """
    return Verdict(
        _answer(runs),
        errors=tuple(f"{one.name} failed: {one.error}" for one in runs if one.error is not None),
        failures=tuple(f"{one.name} failed: {cause}" for one in runs for cause in _causes(one)),
        departures=tuple(map(_departure, filter(departs, runs))),
        warnings=(*(f"{one.name}: {line}" for one in runs for line in (*one.notes, *_doubts(one))), *_busy(runs)),
    )


def exit_code(summaries: Iterable[RunSummary]) -> int:
    """Return the exit code of `specdec compare`.

    Returns:
        2 if a run was abandoned; 1 if a plugin failed while it decoded, or a lossless run at temperature 0 departs
        from the baseline; else 0.
    """
    runs = list(summaries)
    if any(one.status == "error" for one in runs):
        return 2
    return int(any(one.status != "ok" or departs(one) for one in runs))


def departs(one: RunSummary) -> bool:
    """Return whether a run is lossless and greedy, and its outputs are not those of the baseline."""
    greedy = one.config["sampling"]["temperature"] == 0
    return greedy and one.lossless and one.quality is not None and one.quality["exact"] < 1


def exceeds_bound(one: RunSummary) -> bool:
    """Return whether a run was measured faster than its tokens per target call allow."""
    if one.replayed is not None or one.uneven_calls or one.speedup is None or one.speedup_bound is None:
        return False
    return one.speedup > MAX_EXCESS * one.speedup_bound


def fastest(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the fastest run of a task, then those that cannot be told from it, in descending order.

    Args:
        runs: The summaries of its runs, including the baseline, which is not ranked.

    Returns:
        With too few repeats, only the run with the highest speed-up; empty if no run can be ranked.
    """
    ranked = list(filter(_ranked, runs))
    ordered = sorted(list(filter(_timed, ranked)) or ranked, key=_merit, reverse=True)
    if not ordered or _unsure(ordered[0]):
        return ordered[:1]
    low, _ = _ends(ordered[0])
    return [one for one in ordered if _ends(one)[1] >= low]


def _ranked(one: RunSummary) -> bool:
    known = one.name != BASELINE and one.status == "ok" and _merit(one) > 0
    return known and not (exceeds_bound(one) or one.uneven_calls)


def _timed(one: RunSummary) -> bool:
    return one.speedup is not None


def _merit(one: RunSummary) -> float:
    return (one.speedup if _timed(one) else one.block_efficiency) or 0.0


def _ends(one: RunSummary) -> tuple[float, float]:
    """Return the interval of what a run is ranked by, with the noise of the times of a replay."""
    on = one.replayed
    low, high = (one.speedup_low, one.speedup_high) if _timed(one) else ((on and on.low), (on and on.high))
    noise = (on and _timed(one) and on.noise) or 0.0
    return (low or _merit(one)) / (1 + noise), (high or _merit(one)) * (1 + noise)


def _unsure(one: RunSummary) -> bool:
    """Return whether too few repeats were timed to tell runs apart."""
    return _timed(one) and one.replayed is None and one.repeats < MIN_REPEATS


def _answer(runs: Sequence[RunSummary]) -> str:
    best = fastest(runs)
    if not best:
        measured = any(one.name != BASELINE and one.status == "ok" and _merit(one) for one in runs)
        return "no run can be ranked." if measured else "no run was measured except the baseline."
    text = _first(best)
    lossless = fastest([one for one in runs if one.lossless])
    if lossless and not all(one.lossless for one in best):
        text += f" Of the lossless runs, {_first(lossless)}"
    return text


def _first(best: Sequence[RunSummary]) -> str:
    """Return which run is first, and which are not told from it."""
    first = best[0]
    aim = "is the fastest" if _timed(first) else "has the most tokens per forward pass of the target"
    if _merit(first) <= 1:
        aim = "is the nearest, and none is faster than the baseline"
        aim = aim if _timed(first) else "is the nearest, and none saves a forward pass of the target"
    elif _timed(first) and not _unsure(first) and all(_ends(one)[0] <= 1 for one in best):
        aim += ", and none is clearly faster than the baseline"
    names = [f"{one.name} ({_figures(one)})" for one in best[:_MOST_NAMES]]
    more = [f"{len(best) - _MOST_NAMES} more"] if len(best) > _MOST_NAMES else []
    if len(best) > 1:
        return f"one of {', '.join([*names, *more])} {aim}: their intervals overlap."
    few = f" With fewer than {MIN_REPEATS} repeats, runs are not told apart." if _unsure(first) else ""
    return f"{names[0]} {aim}.{few}"


def _figures(one: RunSummary) -> str:
    unit = "×" if _timed(one) else ""
    figures = [f"{_merit(one):.2f}{unit}"]
    low, high = _ends(one)
    if low < high:
        figures[0] += f", {low:.2f} to {high:.2f}"
    if one.speedup_expected_here is not None and one.replayed is None:
        figures.append(f"expected {one.speedup_expected_here:.2f}×")
    if departs(one) or not one.lossless:
        figures.append("departs from the baseline" if one.lossless else "not lossless")
    return "; ".join(figures)


def _causes(one: RunSummary) -> Iterator[str]:
    """Yield each way in which a plugin failed, with how often."""
    times: dict[str, int] = {}
    for failure in one.failures:
        where = f" at {failure['where']}" if failure["where"] else ""
        cause = f"{failure['plugin']}{where}: {failure['message']}"
        times[cause] = times.get(cause, 0) + failure["times"]
    for cause, count in times.items():
        yield f"{cause}{f' ({count} times)' if count > 1 else ''}"


def _departure(one: RunSummary) -> str:
    assert one.quality is not None, "only a decoded run departs"
    prompt, token = one.quality["first_difference"]
    return (
        f"{one.name}: {share(1 - one.quality['exact'])} of its outputs differ from the baseline, first at token "
        f"{token + 1} of prompt {prompt + 1}. Rounding does this where two tokens are nearly equally probable; "
        "`dtype: float32` makes it rare."
    )


def _doubts(one: RunSummary) -> Iterator[str]:
    """Yield why the numbers of a run are in doubt."""
    if one.uneven_calls:
        calls = ", ".join(map(str, one.uneven_calls[:10]))
        yield f"it keeps state between repeats ({calls} target calls), so it is not ranked"
    if exceeds_bound(one):
        yield (
            f"{one.speedup:.2f}× was measured, but its tokens per target call allow {one.speedup_bound:.2f}×, so "
            "it is not ranked"
        )
    low, high = one.speedup_low, one.speedup_high
    if one.replayed is not None:
        if one.replayed.noisy and one.name != BASELINE:
            yield f"the times of its steps are known to ±{one.replayed.noise:.0%} only"
    elif one.name != BASELINE and one.speedup is not None and low is not None and high is not None:
        if one.repeats >= MIN_REPEATS and low <= 1 <= high:
            yield f"{low:.2f}× to {high:.2f}×: not to be told from the baseline"
        asked, spread = one.config.get("repeats"), (high - low) / (2 * one.speedup)
        if isinstance(asked, Mapping) and one.repeats >= asked["max"] and spread > asked["spread"]:
            yield f"known to ±{spread:.0%} after {one.repeats} repeats, not to ±{asked['spread']:.0%}"


def _busy(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield whether other processes took the time of the runs."""
    known = [(1 - one.cpu_seconds / one.seconds, one.name) for one in runs if one.cpu_seconds and one.seconds]
    waiting, name = max(known, default=(0.0, ""))
    if waiting > MAX_WAITING:
        yield f"the machine was busy: {name} waited for a core for {waiting:.0%} of its time"
