"""Coordinates of the charts of a report: bars, marks and points. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from specdec_core.study.config.study import BASELINE
from specdec_core.study.report import formats
from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.verdict import exceeds_bound

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

PARTS = (
    ("target", "T", "target: as long as a forward pass without a draft"),
    ("verifying", "V", "verifying: the target beyond that"),
    ("drafting", "D", "drafting"),
    ("framework", "F", "framework: steps, outside both models"),
    ("outside", "O", "outside: prompts and set-up"),
)
"""Shares of the time: key in results, letter on the bar, words in the legend."""

LEFT, RIGHT, TOP, BOTTOM = 34.0, 310.0, 14.0, 122.0
"""Bounds of the plot area of a curve, in units of its picture."""

_LETTER, _NUMBER = 5.0, 14.0
"""Percent of the width from which a segment has room for its letter, and for its number too, on a phone."""
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_HEADROOM = 1.25


@dataclass(frozen=True)
class Tick:
    """A number on an axis and its position, in percent or in units of a picture."""

    label: str
    at: float


@dataclass(frozen=True)
class Axis:
    """An axis from 0 whose positions are percent of its width.

    Attributes:
        end: The value at 100%.
    """

    end: float

    def at(self, value: float | None) -> float | None:
        """Return the position of a value in percent."""
        return None if value is None else 100 * value / self.end

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round numbers, at most seven."""
        return tuple(Tick(f"{value:g}", 100 * value / self.end) for value in _round_numbers(self.end, 7))


@dataclass(frozen=True)
class SpeedBar:
    """The speed-up of a run, in percent of the axis; None for values that were not measured.

    Attributes:
        name: Name of the run.
        value: The speed-up as text.
        end: End of the bar.
        low: Lower end of the interval of the repeats.
        high: Its upper end.
        expected: The speed-up expected here.
        theorem: Theorem 3.8.
        words: The same in a sentence.
    """

    name: str
    value: str
    end: float | None
    low: float | None
    high: float | None
    expected: float | None
    theorem: float | None
    words: str


@dataclass(frozen=True)
class SpeedChart:
    """The speed-ups of a task; `one` is the position of the baseline."""

    axis: Axis
    one: float
    bars: tuple[SpeedBar, ...]

    @property
    def repeated(self) -> bool:
        """Whether a bar has a range."""
        return any(bar.low is not None for bar in self.bars)


def speed_chart(summaries: Sequence[RunSummary]) -> SpeedChart | None:
    """Return the speed-ups of a task's runs; None if none was measured."""
    runs = [one for one in summaries if one.name != BASELINE]
    known = [
        value
        for one in runs
        for value in (
            *(one.speed.speedup_max, one.speed.speedup_high),
            *(one.expected.speedup_expected_here, one.expected.speedup_expected),
        )
        if one.speed.speedup is not None and value is not None
    ]
    if not known:
        return None
    axis = Axis(1.04 * max(1.0, *known))
    return SpeedChart(axis, 100 / axis.end, tuple(_speed_bar(one, axis) for one in runs))


def _speed_bar(one: RunSummary, axis: Axis) -> SpeedBar:
    speed, expected = one.speed, one.expected
    if speed.speedup is None:
        unknown = "not measured" if one.replayed is None else "not known"
        state = unknown if one.status == "ok" else "failed"
        return SpeedBar(one.name, state, None, None, None, None, None, f"{one.name}: {state}.")
    words = [f"{one.name}: {formats.number(speed.speedup, 2)} times the speed of the baseline"]
    ranged = speed.speedup_low is not None
    if ranged:
        over = "the repeats" if one.replayed is None else "texts"
        words.append(f"from {speed.speedup_low:.2f} to {speed.speedup_high:.2f} over {over}")
    here = expected.speedup_expected_here if one.replayed is None else None  # the bar itself is expected
    if here is not None:
        words.append(f"{here:.2f} expected here")
    if expected.speedup_expected is not None:
        words.append(f"{expected.speedup_expected:.2f} by Theorem 3.8")
    note = ""
    if exceeds_bound(one):
        note = " (not trusted)"
        words.append("which is not to be trusted")
    elif one.error:
        note = " (failed later)"
    return SpeedBar(
        one.name,
        f"{formats.number(speed.speedup, 2)}×{note}",
        axis.at(speed.speedup),
        axis.at(speed.speedup_low),
        axis.at(speed.speedup_high),
        axis.at(here),
        axis.at(expected.speedup_expected),
        ", ".join(words) + ".",
    )


@dataclass(frozen=True)
class Segment:
    """A part of a bar: start and width in percent of the axis, its share of the bar, and its label."""

    part: str
    at: float
    width: float
    share: float
    label: str


@dataclass(frozen=True)
class ShareBar:
    """Where the time of a run went.

    Attributes:
        name: Name of the run.
        value: Time per token over that of the baseline, as text.
        segments: The parts, in the order of `PARTS`.
        words: The same in a sentence.
    """

    name: str
    value: str
    segments: tuple[Segment, ...]
    words: str


@dataclass(frozen=True)
class ShareChart:
    """Where the time of a task's runs went; `one` is the end of the baseline's bar."""

    axis: Axis
    one: float
    bars: tuple[ShareBar, ...]


def share_chart(summaries: Sequence[RunSummary]) -> ShareChart | None:
    """Return bars as long as the time per token, divided into its parts; None if nothing was timed."""
    known = [one for one in summaries if one.expected.time_shares is not None and one.speed.speedup]
    if not known:
        return None
    axis = Axis(1.02 * max(1.0, *(1 / (one.speed.speedup or 1.0) for one in known)))
    return ShareChart(axis, 100 / axis.end, tuple(_share_bar(one, axis) for one in known))


def _share_bar(one: RunSummary, axis: Axis) -> ShareBar:
    # Parts are differences of clocks and may be slightly negative.
    shares = {part: max(0.0, (one.expected.time_shares or {})[part]) for part, _, _ in PARTS}
    total = sum(shares.values()) or 1.0
    took = 1 / (one.speed.speedup or 1.0)
    full = 100 * took / axis.end
    segments: list[Segment] = []
    at = 0.0
    for part, letter, _ in PARTS:
        share = shares[part] / total
        width = share * full
        label = f"{letter} {formats.share(share)}" if width >= _NUMBER else letter if width >= _LETTER else ""
        segments.append(Segment(part, at, width, share, label))
        at += width
    parts = ", ".join(f"{segment.part} {formats.share(segment.share)}" for segment in segments)
    return ShareBar(
        one.name,
        formats.number(took, 2),
        tuple(segments),
        f"{one.name}: {formats.number(took, 2)} of the baseline's time per token; {parts}.",
    )


@dataclass(frozen=True)
class Point:
    """A point of a curve, in units of its picture; faint if it rests on few measurements."""

    x: float
    y: float
    faint: bool = False


@dataclass(frozen=True)
class Curve:
    """A small line chart over whole numbers.

    Attributes:
        points: From left to right.
        across: Ticks of the horizontal axis.
        up: Ticks of the vertical axis.
        words: The same in a sentence.
        guide: Height of the baseline's line.
        best: The best point.
        best_label: Its label.
        measured: The measurement of the run.
    """

    points: tuple[Point, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    words: str
    guide: float | None = None
    best: Point | None = None
    best_label: str = ""
    measured: Point | None = None

    @property
    def lines(self) -> Iterator[tuple[Point, Point]]:
        """Each pair of neighboring points."""
        return pairwise(self.points)

    @property
    def anchor(self) -> str:
        """The side of the best point on which its label has room."""
        if self.best is None or LEFT + 70 < self.best.x < RIGHT - 70:
            return "middle"
        return "start" if self.best.x <= LEFT + 70 else "end"


def alpha_curve(one: RunSummary) -> Curve | None:
    """Return the acceptance rate by position; None without any.

    It is faint below `MIN_COUNT` verified tokens per repeat, as every repeat verifies the same ones.
    """
    rates, verified = one.counts.alpha_by_position, one.counts.verified_by_position
    if not rates:
        return None
    count = len(rates)
    measured = list(zip(range(1, count + 1), rates, verified, strict=True))
    points = [
        Point(_across(position, 1, count), _up(rate, 1.0), n < MIN_COUNT * one.repeats)
        for position, rate, n in measured
    ]
    words = "; ".join(
        f"position {position}: {formats.rate(rate)} of {n:.0f} verified" for position, rate, n in measured
    )
    up = tuple(Tick(label, _up(value, 1.0)) for label, value in (("0", 0.0), ("0.5", 0.5), ("1", 1.0)))
    return Curve(tuple(points), _whole_ticks(1, count), up, f"{one.name}, acceptance rate by position: {words}.")


def gamma_curve(one: RunSummary, scale: float) -> Curve | None:
    """Return the expected speed-up by gamma, with the best and the measured one; None if it is not known.

    Args:
        one: The run.
        scale: The largest speed-up of the task, so that all its curves have the same scale.
    """
    by_gamma, speedup = one.expected.speedup_by_gamma, one.speed.speedup
    if not by_gamma:
        return None
    last = len(by_gamma) - 1
    top = scale * _HEADROOM
    points = [Point(_across(gamma, 0, last), _up(value, top)) for gamma, value in enumerate(by_gamma)]
    listed = "; ".join(f"gamma {gamma}: {formats.number(value, 2)}" for gamma, value in enumerate(by_gamma))
    words = f"{one.name}, expected speed-up by gamma: {listed}."
    measured = None
    if isinstance(one.gamma, int) and one.gamma <= last and speedup is not None and one.replayed is None:
        measured = Point(_across(one.gamma, 0, last), _up(speedup, top))
        words += f" Measured with gamma {one.gamma}: {speedup:.2f}."
    best = one.expected.gamma_best
    return Curve(
        tuple(points),
        _whole_ticks(0, last),
        tuple(Tick(f"{value:g}", _up(value, top)) for value in _round_numbers(top, 4)),
        words,
        guide=_up(1.0, top),
        best=None if best is None else points[best],
        best_label="" if best is None else f"γ {best}: {by_gamma[best]:.2f}×",
        measured=measured,
    )


def max_speedup(summaries: Sequence[RunSummary]) -> float:
    """Return the largest speed-up in the curves of a task, at least 1."""
    shown = (value for one in summaries for value in (*one.expected.speedup_by_gamma, one.speed.speedup or 0.0))
    return max(1.0, *shown, 1.0)


def _across(value: float, first: int, last: int) -> float:
    if first == last:
        return (LEFT + RIGHT) / 2
    return LEFT + 10 + (RIGHT - LEFT - 20) * (value - first) / (last - first)


def _up(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / top


def _whole_ticks(first: int, last: int) -> tuple[Tick, ...]:
    """Return at most ten whole numbers."""
    step = max(1, math.ceil((last - first + 1) / 10))
    return tuple(Tick(str(value), _across(value, first, last)) for value in range(first, last + 1, step))


def _round_numbers(end: float, count: int) -> Iterator[float]:
    """Yield at most `count` round numbers from 0 to `end`."""
    step = next((step for step in _STEPS if end / step < count), end)
    for number in range(int(end / step + 1e-9) + 1):
        yield round(number * step, 6)
