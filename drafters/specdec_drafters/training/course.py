"""The course of a training that follows gradients, from the material to the report: what its trainers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specdec_core.border import TrainingObserver
from specdec_core.models import LoadedModel
from specdec_drafters.configs.training import TrainingConfig
from specdec_drafters.training.checkpoints import TrainingFolder
from specdec_drafters.training.forward import autocast_dtype
from specdec_drafters.training.loop import Task, Trained, train
from specdec_drafters.training.sources import Material, gather

LARGEST_LOGITS = 1 << 24
"""How many logits a model makes at once, unless a single row has more."""
_FREE = {"output", "overwrite", "resume", "evaluate_every", "checkpoint_minutes", "device", "target", "dtype"}
"""Settings that a training may go on with another value of, and those that are compared in another form."""


@dataclass(frozen=True)
class Course:
    """A training that came to its end. Once its result is written, `folder.remove()` is to be called.

    Attributes:
        trained: How it went.
        held_out: How many tokens it was measured on.
        folder: Its checkpoints, from which the result can be written again.
    """

    trained: Trained
    held_out: int
    folder: TrainingFolder

    def facts(self, parameters: int) -> dict[str, str | int | float]:
        """Return what a report says of every training.

        Args:
            parameters: How many were trained.
        """
        progress = self.trained.progress
        return {
            "parameters": parameters,
            "steps": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "held-out tokens": self.held_out,
        }


def follow(
    config: TrainingConfig,
    target: LoadedModel,
    learning_rate: float,
    task: Callable[[Material, torch.dtype], Task],
    observer: TrainingObserver,
) -> Course:
    """Train from the beginning or from the last checkpoint to the end of the budget.

    Args:
        config: What was asked for.
        target: The model drafted for.
        learning_rate: The highest.
        task: Returns what is trained, given the rows to train and measure on, and the number format of matrix
            products.
        observer: Told of all stages.

    Raises:
        SpecdecError: What was given cannot be trained on. Nothing is left then unless there is a checkpoint, from
            which the training can be resumed.
    """
    dtype = autocast_dtype(config.dtype, target.device)
    folder = TrainingFolder(config.output, _settings(config, target, learning_rate, dtype))
    folder.begin(resume=config.resume, overwrite=config.overwrite)
    try:
        material = _material(config, target, folder, observer)
        trained = train(task(material, dtype), config, learning_rate, folder, observer)
    except BaseException:
        folder.tidy()
        raise
    return Course(trained, material.held_out.positions, folder)


def _material(
    config: TrainingConfig, target: LoadedModel, folder: TrainingFolder, observer: TrainingObserver
) -> Material:
    if config.resume:
        return folder.load_rows()
    material = gather(config, target, observer)
    folder.save_rows(material)
    return material


def _settings(
    config: TrainingConfig, target: LoadedModel, learning_rate: float, dtype: torch.dtype
) -> dict[str, Any]:
    """Return what must be the same for a training to go on."""
    model = target.name if target.features is None else f"the model {target.features.fingerprint()}"
    return {
        **config.model_dump(mode="json", exclude=_FREE),
        "target": model,
        "dtype": str(dtype).removeprefix("torch."),
        "learning_rate": learning_rate,
    }
