"""Trainers: what `specdec train NAME` runs to make the weights or tables of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from specdec_core.border.spec import PluginConfig


class TrainerConfig(PluginConfig):
    """What every trainer takes; each field is an option of the command, its docstring the help."""

    target: str = "builtin:target"
    """The model that the drafter will guess for: a folder, a hub name, or builtin:target."""
    output: Path
    """Where the result goes."""
    overwrite: bool = False
    """Replace what is there."""


class TrainingObserver(Protocol):
    """Is told how the work goes on; for progress on a terminal and for learning curves."""

    def stage(self, what: str, total: float | None = None) -> None:
        """A part of the work begins: `total` units of it, where that is known."""

    def advance(self, done: float, note: str = "") -> None:
        """So many units of the stage are done; the note says how well (a loss, a rate)."""

    def measured(self, point: Mapping[str, float]) -> None:
        """A point of the learning curve: names and values."""


@dataclass(frozen=True)
class TrainingReport:
    """What a trainer made.

    Attributes:
        written: The files or folders.
        facts: What is worth knowing of it, in order: sizes, losses, rates, seconds.
        usage: How a study names the drafter: what stands behind `drafter:`, as YAML.
    """

    written: tuple[Path, ...]
    facts: Mapping[str, str | int | float]
    usage: str


class Trainer(ABC):
    """Makes the weights or tables of a drafter.

    Attributes:
        Config: What may be said about the work.
        config: What was said.
    """

    Config: ClassVar[type[TrainerConfig]] = TrainerConfig

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def train(self, observer: TrainingObserver) -> TrainingReport:
        """Do the work; what is written is whole, or not there.

        Raises:
            SpecdecError: What was given cannot be trained on; nothing is left behind.
        """
