"""The learning curve: one JSON object per evaluation, and a plot if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from specdec_core.interface import Progress

HINT = "pip install 'specdec-core[report]' draws curve.svg"


class Curve:
    """Points of a training run, saved as one JSON object per line.

    Args:
        path: The file to append to.
        progress: Receives every new point.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self.points: list[dict[str, float]] = []

    def resume(self, step: int) -> None:
        """Load the points up to a step; later ones will be measured again."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        self.points = [point for point in map(_point, lines) if point is not None and point["step"] <= step]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_points(self.points, self._path)

    def add(self, point: Mapping[str, float]) -> None:
        """Append a point, which must have a `step`."""
        self.points.append(dict(point))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(point))
        self._progress.measured(point)


def _line(point: Mapping[str, float]) -> str:
    return json.dumps(dict(point)) + "\n"


def _point(line: str) -> dict[str, float] | None:
    """Return the point of a line, or None if the line is truncated."""
    try:
        point = json.loads(line)
    except json.JSONDecodeError:
        return None
    return point if isinstance(point, dict) and "step" in point else None


def write_points(points: Iterable[Mapping[str, float]], path: Path) -> None:
    """Write a file with one JSON object per point."""
    path.write_text("".join(map(_line, points)), encoding="utf-8")


def write_curve(points: list[dict[str, float]], folder: Path) -> str:
    """Write `curve.jsonl` and, with matplotlib, `curve.svg` to a folder; return a description."""
    write_points(points, folder / "curve.jsonl")
    if importlib.util.find_spec("matplotlib") is None:
        return f"curve.jsonl ({HINT})"
    _draw(points, folder / "curve.svg")
    return "curve.jsonl, curve.svg"


def _draw(points: list[dict[str, float]], path: Path) -> None:
    """Plot the loss (top) and the held-out alpha with its standard error (bottom) over tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    trained = [point for point in points if "loss" in point]
    above.plot([point["tokens"] for point in trained], [point["loss"] for point in trained], color="C1")
    above.set_ylabel("loss")
    for name, label, color in (("alpha", "alpha", "C0"), ("greedy_alpha", "greedy alpha", "C2")):
        there = [point for point in points if name in point]
        x, y = [point["tokens"] for point in there], [point[name] for point in there]
        errors = [point.get(f"{name}_error", 0.0) for point in there]
        below.errorbar(x, y, errors, label=label, color=color, marker="o", markersize=3)
    below.set(xlabel="tokens trained on", ylabel="held out", ylim=(0, 1))
    below.legend()
    figure.savefig(path)
