"""Progress: reports of work that takes long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Receives how far a study, a recording, a measurement or a training is.

    `specdec_core.study.progress` shows it on a terminal and in a notebook; `NoProgress` shows nothing.
    """

    def stage(self, what: str, total: float | None = None) -> None:
        """A stage of the work starts, of `total` units if that is known."""

    def advance(self, done: float, note: str = "") -> None:
        """`done` units of the stage are complete; the note shows a loss or a rate."""

    def measured(self, point: Mapping[str, float]) -> None:
        """Some values were measured, such as a point of the learning curve: names and values."""


class NoProgress(Progress):
    """Shows no progress."""

    def stage(self, what: str, total: float | None = None) -> None:
        """Do nothing."""

    def advance(self, done: float, note: str = "") -> None:
        """Do nothing."""

    def measured(self, point: Mapping[str, float]) -> None:
        """Do nothing."""
