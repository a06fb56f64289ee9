"""The pictures of a report as numbers: where bars end, where marks and points stand. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from specdec_core.study.expectation import ENOUGH
from specdec_core.study.study import PLAIN

if TYPE_CHECKING:
    from specdec_core.study.summary import RunSummary

PARTS = (
    ("target", "T", "target, as far as a plain call takes"),
    ("verifying", "V", "verifying: the target beyond that"),
    ("drafting", "D", "drafting"),
    ("framework", "F", "framework: in the steps, but in neither model"),
    ("outside", "O", "outside: prompts and set-up"),
)
"""The shares of the time: name in results, letter on the bar, words in the legend."""

LEFT, RIGHT, TOP, BOTTOM = 34.0, 310.0, 14.0, 122.0
"""Where the plot of a curve lies, in the units of its picture."""

_LETTER, _NUMBER = 5.0, 14.0
"""From how many percent of the width on a segment has room for its letter, and for its number too, on a phone."""
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_HEADROOM = 1.25


@dataclass(frozen=True)
class Tick:
    """A number on an axis, and where it stands: in percent or in the units of a picture."""

    label: str
    at: float


@dataclass(frozen=True)
class Axis:
    """An axis from 0 that is written as percent of its width.

    Attributes:
        most: What stands at 100%.
    """

    most: float

    def at(self, value: float | None) -> float | None:
        """Return where a value stands, in percent."""
        return None if value is None else 100 * value / self.most

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round numbers, at most seven."""
        return tuple(Tick(f"{value:g}", 100 * value / self.most) for value in _round_numbers(self.most, 7))


@dataclass(frozen=True)
class SpeedBar:
    """The speed-up of a run, in percent of the axis; None for what was not measured.

    Attributes:
        name: Name of the run.
        value: The speed-up as it is written.
        end: Where the bar ends.
        low: The least of a repeat.
        high: The greatest of a repeat.
        expected: What was to be expected here.
        theorem: Theorem 3.8.
        words: All of it in a sentence.
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
    """The speed-ups of a task; `one` is where plain decoding stands."""

    axis: Axis
    one: float
    bars: tuple[SpeedBar, ...]

    @property
    def repeated(self) -> bool:
        """Whether a bar has a range."""
        return any(bar.low is not None for bar in self.bars)


def speed_chart(summaries: Sequence[RunSummary]) -> SpeedChart | None:
    """Return the speed-ups of a task's runs; None where none was measured."""
    runs = [one for one in summaries if one.name != PLAIN]
    known = [
        value
        for one in runs
        for value in (one.speedup_max, one.speedup_expected_here, one.speedup_expected)
        if one.speedup is not None and value is not None
    ]
    if not known:
        return None
    axis = Axis(1.04 * max(1.0, *known))
    return SpeedChart(axis, 100 / axis.most, tuple(_speed_bar(one, axis) for one in runs))


def _speed_bar(one: RunSummary, axis: Axis) -> SpeedBar:
    if one.speedup is None:
        state = "failed" if one.error else "not measured"
        return SpeedBar(one.name, state, None, None, None, None, None, f"{one.name}: {state}.")
    said = [f"{one.name}: {one.speedup:.2f} times the speed of plain decoding"]
    ranged = one.repeats > 1
    if ranged:
        said.append(f"from {one.speedup_min:.2f} to {one.speedup_max:.2f} over the repeats")
    if one.speedup_expected_here is not None:
        said.append(f"{one.speedup_expected_here:.2f} expected here")
    if one.speedup_expected is not None:
        said.append(f"{one.speedup_expected:.2f} by Theorem 3.8")
    return SpeedBar(
        one.name,
        f"{one.speedup:.2f}×" + (" (failed later)" if one.error else ""),
        axis.at(one.speedup),
        axis.at(one.speedup_min) if ranged else None,
        axis.at(one.speedup_max) if ranged else None,
        axis.at(one.speedup_expected_here),
        axis.at(one.speedup_expected),
        ", ".join(said) + ".",
    )


@dataclass(frozen=True)
class Segment:
    """A part of a bar: where it begins and its width, in percent of the axis; its share, and what stands on it."""

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
        value: Time for a token, over that of plain decoding, as it is written.
        segments: The parts, in the order of `PARTS`.
        words: All of it in a sentence.
    """

    name: str
    value: str
    segments: tuple[Segment, ...]
    words: str


@dataclass(frozen=True)
class ShareChart:
    """Where the time of a task's runs went; `one` is where plain decoding ends."""

    axis: Axis
    one: float
    bars: tuple[ShareBar, ...]


def share_chart(summaries: Sequence[RunSummary]) -> ShareChart | None:
    """Return bars as long as the time for a token, made of its parts; None where nothing was timed."""
    known = [one for one in summaries if one.time_shares is not None and one.speedup]
    if not known:
        return None
    axis = Axis(1.02 * max(1.0, *(1 / (one.speedup or 1.0) for one in known)))
    return ShareChart(axis, 100 / axis.most, tuple(_share_bar(one, axis) for one in known))


def _share_bar(one: RunSummary, axis: Axis) -> ShareBar:
    # Parts are differences of clocks, and may be a hair below 0.
    shares = {part: max(0.0, (one.time_shares or {})[part]) for part, _, _ in PARTS}
    total = sum(shares.values()) or 1.0
    took = 1 / (one.speedup or 1.0)
    full = 100 * took / axis.most
    segments: list[Segment] = []
    at = 0.0
    for part, letter, _ in PARTS:
        share = shares[part] / total
        width = share * full
        label = f"{letter} {share:.0%}" if width >= _NUMBER else letter if width >= _LETTER else ""
        segments.append(Segment(part, at, width, share, label))
        at += width
    parts = ", ".join(f"{segment.part} {segment.share:.0%}" for segment in segments)
    return ShareBar(
        one.name, f"{took:.2f}", tuple(segments), f"{one.name}: {took:.2f} of plain decoding; {parts}."
    )


@dataclass(frozen=True)
class Point:
    """A point of a curve, in the units of its picture; faint when little is known of it."""

    x: float
    y: float
    faint: bool = False


@dataclass(frozen=True)
class Curve:
    """A small picture of a number by a whole number.

    Attributes:
        points: From left to right.
        across: The numbers below.
        up: The numbers at the left.
        guide: Height of the line of plain decoding.
        best: The point to take.
        best_label: What stands at it.
        measured: Where the run itself stands.
        words: All of it in a sentence.
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
        """Every two neighbours."""
        return pairwise(self.points)

    @property
    def anchor(self) -> str:
        """On which side of the best point its label has room."""
        if self.best is None or LEFT + 70 < self.best.x < RIGHT - 70:
            return "middle"
        return "start" if self.best.x <= LEFT + 70 else "end"


def alpha_curve(one: RunSummary) -> Curve | None:
    """Return alpha by position, faint where fewer than `ENOUGH` tokens were judged; None where none was."""
    if not one.alpha_by_position:
        return None
    count = len(one.alpha_by_position)
    places = range(1, count + 1)
    judged = one.judged_by_position
    points = [
        Point(_across(place, 1, count), _up(alpha, 1.0), tokens < ENOUGH)
        for place, alpha, tokens in zip(places, one.alpha_by_position, judged, strict=True)
    ]
    said = [
        f"position {place}: {alpha:.2f} of {tokens} judged"
        for place, alpha, tokens in zip(places, one.alpha_by_position, judged, strict=True)
    ]
    up = tuple(Tick(label, _up(value, 1.0)) for label, value in (("0", 0.0), ("0.5", 0.5), ("1", 1.0)))
    return Curve(tuple(points), _whole_ticks(1, count), up, f"{one.name}, alpha by position: {'; '.join(said)}.")


def gamma_curve(one: RunSummary, most: float) -> Curve | None:
    """Return the speed-up to be expected by gamma, with the best and the measured one; None where none is known.

    Args:
        one: The run.
        most: The greatest speed-up of the task, so that all its curves have one scale.
    """
    if not one.speedup_by_gamma:
        return None
    last = len(one.speedup_by_gamma) - 1
    top = most * _HEADROOM
    points = [Point(_across(g, 0, last), _up(value, top)) for g, value in enumerate(one.speedup_by_gamma)]
    said = "; ".join(f"gamma {gamma}: {value:.2f}" for gamma, value in enumerate(one.speedup_by_gamma))
    words = f"{one.name}, speed-up to be expected by gamma: {said}."
    measured = None
    if isinstance(one.gamma, int) and one.gamma <= last and one.speedup is not None:
        measured = Point(_across(one.gamma, 0, last), _up(one.speedup, top))
        words += f" Measured with gamma {one.gamma}: {one.speedup:.2f}."
    best = one.gamma_best
    return Curve(
        tuple(points),
        _whole_ticks(0, last),
        tuple(Tick(f"{value:g}", _up(value, top)) for value in _round_numbers(top, 4)),
        words,
        guide=_up(1.0, top),
        best=None if best is None else points[best],
        best_label="" if best is None else f"γ {best}: {one.speedup_by_gamma[best]:.2f}×",
        measured=measured,
    )


def greatest(summaries: Sequence[RunSummary]) -> float:
    """Return the greatest speed-up that the curves of a task show, at least 1."""
    shown = (value for one in summaries for value in (*one.speedup_by_gamma, one.speedup or 0.0))
    return max(1.0, *shown, 1.0)


def _across(value: float, first: int, last: int) -> float:
    if first == last:
        return (LEFT + RIGHT) / 2
    return LEFT + 10 + (RIGHT - LEFT - 20) * (value - first) / (last - first)


def _up(value: float, most: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / most


def _whole_ticks(first: int, last: int) -> tuple[Tick, ...]:
    """Return at most ten whole numbers."""
    step = max(1, math.ceil((last - first + 1) / 10))
    return tuple(Tick(str(value), _across(value, first, last)) for value in range(first, last + 1, step))


def _round_numbers(most: float, count: int) -> Iterator[float]:
    """Yield round numbers from 0 to the greatest that is not above `most`: at most so many, if it is not huge."""
    step = next((step for step in _STEPS if most / step < count), most)
    for number in range(int(most / step + 1e-9) + 1):
        yield round(number * step, 6)
