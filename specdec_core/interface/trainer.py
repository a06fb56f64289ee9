"""Trainers, which `specdec train NAME` runs to make a drafter's weights or tables, and their progress."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


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


@dataclass(frozen=True)
class TrainingReport:
    """The result of a trainer.

    Attributes:
        written: The files or folders it wrote.
        facts: Facts to print, in order: sizes, losses, rates, seconds.
        usage: The value of `drafter:` in a study that uses the result, as YAML.
    """

    written: tuple[Path, ...]
    facts: Mapping[str, str | int | float]
    usage: str


class Trainer(ABC):
    """Creates the weights or tables of a drafter.

    Attributes:
        Config: The pydantic model of its options.
        config: The validated options.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def train(self, progress: Progress) -> TrainingReport:
        """Train, and write the result completely or not at all.

        Args:
            progress: Where progress is reported.

        Raises:
            SpecdecError: The input cannot be trained on; nothing is left behind.
        """
