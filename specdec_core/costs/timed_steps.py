"""From timed steps to their costs: which average, and how well it is known.

T(k) is a median: steps of one length do the same work, and what delays some of them is not part of it. D(k) is a
mean: drafts of one length may be made now by one part of a drafter and now by another, as in a chain, a hierarchy
or a search for text to copy, which take very different times. Seconds add up from the mean, and a median would
tell of the most frequent part alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from specdec_core.costs.interpolation import interpolated
from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface import StepReport
from specdec_core.theory.intervals import relative_spread, relative_spread_of_mean

Timings = Mapping[int, Sequence[float]]
"""Seconds of steps by the length of their draft."""
_Averages = tuple[tuple[float, ...], tuple[float, ...]]


def measured_costs(reports: Sequence[StepReport], gamma: int) -> StepCosts:
    """Return T(k) for every length up to gamma, and the overhead, of steps that were timed; see `interpolated`.

    Args:
        reports: The steps; each counts by the longest draft that was proposed.
        gamma: The longest draft.
    """
    timings = defaultdict[int, list[float]](list)
    for report in reports:
        timings[max(report.outcome.drafted)].append(report.verify_seconds)
    verify, spread = _averages(timings, gamma, median, relative_spread)
    rest = [one.step_seconds - one.verify_seconds - one.draft_seconds for one in reports]
    return StepCosts(verify=verify, verify_spread=spread, overhead=max(0.0, median(rest)))


def mean_seconds(timings: Timings, longest: int) -> _Averages:
    """Return the means for every length up to `longest`, and how well each is known; () if that is not known."""
    return _averages(timings, longest, fmean, relative_spread_of_mean)


def _averages(
    timings: Timings,
    longest: int,
    average: Callable[[Sequence[float]], float],
    spread: Callable[[Sequence[float]], float | None],
) -> _Averages:
    values = {k: average(each) for k, each in timings.items()}
    spreads = {k: spread(timings[k]) for k, value in values.items() if value > 0}
    known = {k: each for k, each in spreads.items() if each is not None}
    return interpolated(values, longest), interpolated(known, longest, slope=0.0)
