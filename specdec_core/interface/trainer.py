"""Trainers, which `specdec train NAME` runs to make the weights or tables of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_core.interface.progress import Progress
from specdec_core.interface.spec import PluginConfig


class TrainerConfig(PluginConfig):
    """Options of every trainer; each field is an option of the command, and its docstring is the help."""

    target: str = "builtin:target"
    """The target that the drafter will draft for: a folder, a hub name, or builtin:target."""
    output: Path
    """Where the result goes."""
    overwrite: bool = False
    """Replace what is there."""


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
