"""Coordinates of the charts of a report, which its templates draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.expectation import MIN_COUNT, PARTS
from specdec_core.study.report.formats import number, share
from specdec_core.study.report.summary import RunSummary

LEFT, RIGHT, TOP, BOTTOM = 34.0, 310.0, 14.0, 122.0
"""Bounds of the plot area of a curve, in units of its picture."""
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
LABELED = 14.0
"""Percent of the width from which a segment has room for its share, on a phone."""


def speed_scale(summaries: Sequence[RunSummary]) -> float | None:
    """Return the speed-up at the end of a task's bars; None if none was measured."""
    known = [
        value
        for one in summaries
        for value in (one.speedup_max, one.speedup_high, one.speedup_expected_here, one.speedup_expected)
        if one.name != BASELINE and one.speedup is not None and value is not None
    ]
    return 1.04 * max(1.0, *known) if known else None


def time_scale(summaries: Sequence[RunSummary]) -> float | None:
    """Return the time per token at the end of a task's bars, over that of the baseline; None if none was timed."""
    known = [1 / one.speedup for one in summaries if one.time_shares is not None and one.speedup]
    return 1.02 * max(1.0, *known) if known else None


@dataclass(frozen=True)
class Segment:
    """A part of a bar: start and width in percent of the axis, and its share of the bar."""

    part: str
    at: float
    width: float
    share: str


def segments(one: RunSummary, scale: float) -> list[Segment]:
    """Return a bar as long as a run's time per token, divided into its parts; empty if it was not timed."""
    if one.time_shares is None or not one.speedup:
        return []
    # Parts are differences of clocks and may be slightly negative.
    shares = {part: max(0.0, one.time_shares[part]) for part in PARTS}
    whole, full = sum(shares.values()) or 1.0, 100 / (one.speedup * scale)
    found, at = [], 0.0
    for part, own in shares.items():
        found.append(Segment(part, at, own / whole * full, share(own / whole)))
        at += found[-1].width
    return found


@dataclass(frozen=True)
class Curve:
    """A small line chart over whole numbers; positions are in units of its picture.

    Attributes:
        words: Its values, for those who do not see it.
        points: x, y, and whether it rests on few measurements, from left to right.
        across: Labels of the horizontal axis and their positions.
        up: Labels of the vertical axis and their positions.
        guide: Height of the baseline's line.
        best: Index of the best point.
        measured: The measurement of the run.
    """

    words: str
    points: Sequence[tuple[float, float, bool]]
    across: Sequence[tuple[str, float]]
    up: Sequence[tuple[str, float]]
    guide: float | None = None
    best: int | None = None
    measured: tuple[float, float] | None = None


def alpha_curve(one: RunSummary) -> Curve | None:
    """Return the acceptance rate by position; None without any.

    It is faint below `MIN_COUNT` verified tokens per repeat, as every repeat verifies the same ones.
    """
    few = [verified < MIN_COUNT * one.repeats for verified in one.verified_by_position]
    return _curve(one.alpha_by_position, 1, 1.0, few) if one.alpha_by_position else None


def gamma_curve(one: RunSummary, summaries: Sequence[RunSummary]) -> Curve | None:
    """Return the expected speed-up by gamma, with the best and the measured one; None if it is not known.

    Args:
        one: The run.
        summaries: Those of its task, whose curves have the same scale.
    """
    if not one.speedup_by_gamma:
        return None
    shown = (value for run in summaries for value in (*run.speedup_by_gamma, run.speedup or 0.0))
    top = 1.25 * max(1.0, *shown)
    last, measured = len(one.speedup_by_gamma) - 1, None
    if isinstance(one.gamma, int) and one.gamma <= last and one.speedup is not None and one.replayed is None:
        measured = _across(one.gamma, 0, last), _up(one.speedup, top)
    few = [False] * (last + 1)
    return _curve(one.speedup_by_gamma, 0, top, few, _up(1.0, top), one.gamma_best, measured)


def _curve(
    values: Sequence[float],
    first: int,
    top: float,
    few: Sequence[bool],
    guide: float | None = None,
    best: int | None = None,
    measured: tuple[float, float] | None = None,
) -> Curve:
    last = first + len(values) - 1
    every = 1 + len(values) // 10
    return Curve(
        "; ".join(f"{first + index}: {number(value, 2)}" for index, value in enumerate(values)),
        [
            (_across(first + index, first, last), _up(value, top), faint)
            for index, (value, faint) in enumerate(zip(values, few, strict=True))
        ],
        [(str(place), _across(place, first, last)) for place in range(first, last + 1, every)],
        [(f"{value:g}", _up(value, top)) for value in ticks(top, 4)],
        guide,
        best,
        measured,
    )


def _across(value: float, first: int, last: int) -> float:
    return LEFT + 10 + (RIGHT - LEFT - 20) * ((value - first) / (last - first) if last > first else 0.5)


def _up(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / top


def ticks(end: float, count: int = 7) -> Iterator[float]:
    """Yield at most `count` round numbers from 0 to `end`."""
    step = next((step for step in _STEPS if end / step < count), end)
    for place in range(int(end / step + 1e-9) + 1):
        yield round(place * step, 6)
