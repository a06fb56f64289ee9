"""A gradient-based training run, from the data to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specdec_core.interface import Progress
from specdec_core.models import LoadedModel
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.checkpoints import TrainingFolder
from specdec_drafters.training.loop import Objective, Trained, train
from specdec_drafters.training.sequence_logits import autocast_dtype
from specdec_drafters.training.sources import TrainingData, gather

LARGEST_LOGITS = 1 << 24
"""The most logits computed at once, unless a single sequence has more."""
_FREE = {"output", "overwrite", "resume", "evaluate_every", "checkpoint_minutes", "device", "target", "dtype"}
"""Settings that may change when a run is resumed, or that are compared in another form."""


@dataclass(frozen=True)
class TrainingRun:
    """A finished training run. Call `folder.remove()` once its result is written.

    Attributes:
        trained: Its progress and learning curve.
        held_out: Number of held-out tokens.
        folder: Its checkpoints, from which the result can be written again.
    """

    trained: Trained
    held_out: int
    folder: TrainingFolder

    def facts(self, parameters: int) -> dict[str, str | int | float]:
        """Return the facts for the report.

        Args:
            parameters: Number of trained parameters.
        """
        state = self.trained.state
        return {
            "parameters": parameters,
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 1),
            "held-out tokens": self.held_out,
        }


def run_training(
    config: TrainingConfig,
    target: LoadedModel,
    learning_rate: float,
    make_objective: Callable[[TrainingData, torch.dtype], Objective],
    progress: Progress,
) -> TrainingRun:
    """Train to the end of the budget, from the start or from the last checkpoint.

    Args:
        config: The settings.
        target: The target.
        learning_rate: The peak learning rate.
        make_objective: Returns the objective, given the training data and the dtype of matrix products.
        progress: Receives all stages.

    Raises:
        SpecdecError: The data is unusable. Only a checkpoint, if any, is left, from which the run can be resumed.
    """
    dtype = autocast_dtype(config.dtype, target.device)
    folder = TrainingFolder(config.output, _settings(config, target, learning_rate, dtype))
    folder.begin(resume=config.resume, overwrite=config.overwrite)
    try:
        data = _data(config, target, folder, progress)
        trained = train(make_objective(data, dtype), config, learning_rate, folder, progress)
    except BaseException:
        folder.tidy()
        raise
    return TrainingRun(trained, data.held_out.positions, folder)


def _data(config: TrainingConfig, target: LoadedModel, folder: TrainingFolder, progress: Progress) -> TrainingData:
    if config.resume:
        return folder.load_rows()
    data = gather(config, target, progress)
    folder.save_rows(data)
    return data


def _settings(
    config: TrainingConfig, target: LoadedModel, learning_rate: float, dtype: torch.dtype
) -> dict[str, Any]:
    """Return the settings that must be unchanged to resume."""
    model = target.name if target.features is None else f"the model {target.features.fingerprint()}"
    return {
        **config.model_dump(mode="json", exclude=_FREE),
        "target": model,
        "dtype": str(dtype).removeprefix("torch."),
        "learning_rate": learning_rate,
    }
