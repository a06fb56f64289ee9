"""Progress that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Recorder:
    """Keeps stages, advances and points; calls `on_advance` with how often it was told of one in this stage."""

    def __init__(self, on_advance: Callable[[str, int], None] = lambda stage, number: None) -> None:
        self.stages: list[tuple[str, float | None]] = []
        self.advances: dict[str, list[float]] = {}
        self.points: list[dict[str, float]] = []
        self._on_advance = on_advance

    def stage(self, what: str, total: float | None = None) -> None:
        self.stages.append((what, total))

    def advance(self, done: float, note: str = "") -> None:
        stage = self.stages[-1][0]
        self.advances.setdefault(stage, []).append(done)
        self._on_advance(stage, len(self.advances[stage]))

    def measured(self, point: Mapping[str, float]) -> None:
        self.points.append(dict(point))
