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


def measured_costs(
    reports: Sequence[StepReport], gamma: int, *, min_count: int = 3, others: Sequence[StepReport] = ()
) -> StepCosts:
    """Return the costs of steps that were timed, for every length up to gamma; see `interpolated`.

    A step counts by the longest draft that was proposed. One in which the drafter proposed nothing only times the
    target.

    Args:
        reports: Steps with one drafter, some of them without a draft.
        gamma: The longest draft.
        min_count: Lengths that occurred less often are not used, except 0.
        others: Steps with other drafts; their T(k) is used for lengths that did not occur.
    """
    verify, draft = _timings(reports, min_count)
    rest = [one.step_seconds - one.verify_seconds - one.draft_seconds for one in reports]
    target, target_spread = median_seconds({**_timings(others, min_count)[0], **verify}, gamma)
    drafter, drafter_spread = mean_seconds(draft, gamma)
    return StepCosts(
        verify=target,
        draft=drafter,
        overhead=max(0.0, median(rest)),
        verify_spread=target_spread,
        draft_spread=drafter_spread,
        timed=tuple(sorted(draft)),
    )


def median_seconds(timings: Timings, longest: int) -> _Averages:
    """Return the medians for every length up to `longest`, and how well each is known; () if that is not known."""
    return _averages(timings, longest, median, relative_spread)


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


def _timings(reports: Sequence[StepReport], min_count: int) -> tuple[Timings, Timings]:
    """Return the seconds of the target and of the drafter, of the lengths that occurred often enough."""
    verify, draft = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for report in reports:
        k = max(report.outcome.drafted)
        verify[k].append(report.verify_seconds)
        draft[k].append(report.draft_seconds if k else 0.0)
    often = [k for k in draft if k == 0 or len(draft[k]) >= min_count]
    return {k: verify[k] for k in often}, {k: draft[k] for k in often}
