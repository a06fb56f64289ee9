"""The base of the trainers of weights: from the target to the report."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from specdec_core.interface import Progress, Trainer, TrainingReport
from specdec_core.interface.files import check_output, writing_file
from specdec_core.models import LoadedModel, load_model
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.loop import Objective, StepResult, Trained, TrainingFolder, train, write_points
from specdec_drafters.training.rows import LARGEST_LOGITS, Batches, Rows, autocast_dtype
from specdec_drafters.training.sources import TrainingData, gather

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


class TargetDistillation(ABC):
    """The drafter in training, the frozen target, and the data to compare them on.

    Args:
        config: Temperature, batch size and seed.
        target: The target, which gives p.
        data: The rows to train and measure on.
        dtype: Data type of matrix products in training. Evaluation uses the models' own.
        vocab_size: The size of the larger vocabulary; by default the target's.
    """

    def __init__(
        self,
        config: TrainingConfig,
        target: LoadedModel,
        data: TrainingData,
        dtype: torch.dtype,
        vocab_size: int | None = None,
    ) -> None:
        self._target = target
        self._held_out = data.held_out
        self._batches = Batches(data.pools, config.batch_tokens, config.seed)
        self._dtype = dtype
        self._part = max(1, LARGEST_LOGITS // (vocab_size or target.vocab_size))

    @abstractmethod
    def objective(self) -> Objective:
        """Return the objective for the training loop."""

    @abstractmethod
    def measure(self) -> Mapping[str, float]:
        """Return the held-out acceptance rates."""

    def losses(self, rows: Rows, done: float) -> Iterable[Tensor]:
        """Yield the loss of each model that is trained, summed over the positions of some rows.

        Args:
            rows: The rows, on the target's device. There is no loss where they are too short for a draft.
            done: The completed share of the run.
        """
        raise NotImplementedError

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part."""
        parts = [part for rows in self._batches.at(step) for part in rows.split(self._part)]
        positions = sum(part.positions for part in parts)
        total, models = 0.0, 1
        for part in parts:
            for number, loss in enumerate(self.losses(part.to(self._target.device), done), start=1):
                (loss / positions).backward()  # type: ignore[no-untyped-call]
                total, models = total + float(loss.detach()), max(models, number)
        return StepResult(total / positions / models, positions)


_Trained = TypeVar("_Trained", bound=TargetDistillation)


class WeightsTrainer(Trainer, Generic[_Trained]):
    """Trains weights by gradients and writes them with their learning curve.

    The result is a file with the curve beside it, or a folder that holds the curve.

    Attributes:
        drafter: Name of the drafter that uses the result.
        result: What is written, for the display of progress.
        folder_with: Name of a file that every result folder holds; None for a result that is a file.
    """

    drafter: ClassVar[str]
    result: ClassVar[str]
    folder_with: ClassVar[str | None] = None

    @property
    @abstractmethod
    def rate(self) -> float:
        """The peak learning rate, unless the settings give one."""

    @abstractmethod
    def prepare(self, target: LoadedModel) -> Any:
        """Return what `distillation` needs, before the data is read.

        Args:
            target: The loaded target, neither packed nor compiled.

        Raises:
            SpecdecError: The drafter cannot be trained for the target.
        """

    @abstractmethod
    def distillation(self, target: LoadedModel, prepared: Any, data: TrainingData, dtype: torch.dtype) -> _Trained:
        """Return the trained part, given the result of `prepare` and the data."""

    @abstractmethod
    def write(self, trained: _Trained, target: LoadedModel, run: TrainingRun) -> Mapping[str, str | int | float]:
        """Write the result, and return the facts of the report."""

    def train(self, progress: Progress) -> TrainingReport:
        """Train; the result is complete, or there is none.

        Raises:
            SpecdecError: The data is unusable, or the result cannot be written. Checkpoints are kept, and the run
                can be resumed.
        """
        config: TrainingConfig = self.config
        outputs = [config.output] if self.folder_with else [config.output, curve_path(config.output)]
        for path in outputs:
            check_output(path, config.overwrite, folder_with=self.folder_with)
        progress.stage("loading the target")
        target = load_model(config.target, device=config.device, packed=False, compile=False)
        prepared = self.prepare(target)
        made: list[_Trained] = []

        def objective(data: TrainingData, dtype: torch.dtype) -> Objective:
            made.append(self.distillation(target, prepared, data, dtype))
            return made[0].objective()

        run = run_training(config, target, config.learning_rate or self.rate, objective, progress)
        progress.stage(f"writing {self.result}")
        facts = self.write(made[0], target, run)
        if self.folder_with is None:
            with writing_file(curve_path(config.output)) as temporary:
                write_points(run.trained.curve, temporary)
        run.folder.remove()
        return TrainingReport(tuple(outputs), facts, usage(self.drafter, "model", config.output))


def curve_path(output: Path) -> Path:
    """Return the path of the learning curve beside a result."""
    return output.with_suffix(".curve.jsonl")


def text_facts(config: TrainingConfig) -> dict[str, str]:
    """Return the settings that say what text a drafter was trained on, for the header of its file."""
    names = ("text", "samples", "sources", "temperature", "seed")
    return {name: without_home(value) for name in names if (value := getattr(config, name)) is not None}


def without_home(value: object) -> str:
    """Return a value as text; of a path in the user's home folder, that is written `~`: weights are passed on."""
    text = str(value)
    try:
        return f"~/{Path(text).relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):  # it is elsewhere, or the home folder is unknown
        return text


def usage(drafter: str, key: str, path: Path) -> str:
    """Return how a study names a trained drafter: a YAML mapping in one line.

    Args:
        drafter: Name of the drafter.
        key: The setting that takes the path.
        path: The file or folder that was written. Quoted as JSON, so that YAML reads any path.
    """
    return f"{{name: {drafter}, {key}: {json.dumps(str(path), ensure_ascii=False)}}}"
