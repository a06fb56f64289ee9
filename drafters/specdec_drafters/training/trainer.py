"""The base of the trainers of weights: from the target to the report."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from specdec_core.interface import Progress, Trainer, TrainingReport
from specdec_core.interface.errors import without_home
from specdec_core.interface.files import check_output, writing_file
from specdec_core.models import LoadedModel, load_model
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.loop import StepResult, Trained, TrainingFolder, train, write_points
from specdec_drafters.training.losses import Scores
from specdec_drafters.training.rows import LARGEST_LOGITS, Batches, Rows, autocast_dtype
from specdec_drafters.training.sources import TrainingData, gather

_FREE = {"output", "overwrite", "resume", "evaluate_every", "checkpoint_minutes", "device", "target", "dtype"}
"""Settings that may change when a run is resumed, or that are compared in another form."""


@dataclass(frozen=True)
class TrainingRun:
    """A finished training run.

    Attributes:
        trained: Its progress and learning curve.
        held_out: Number of held-out tokens.
    """

    trained: Trained
    held_out: int

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

    def acceptance(self, of: str) -> dict[str, str | float]:
        """Return the acceptance at each depth of a draft before and after training, for the report.

        Args:
            of: What has a depth, such as `of each head`.
        """
        points = {"before": self.trained.curve[0], "after": self.trained.curve[-1]}
        facts: dict[str, str | float] = {}
        for what, name in ((f"alpha {of}", "alpha_"), (f"greedy alpha {of}", "greedy_alpha_")):
            for when, point in points.items():
                values = [value for key, value in point.items() if key.startswith(name)]
                facts[f"{what} {when}"] = ", ".join(f"{value:.3f}" for value in values)
        return facts | {
            f"block efficiency {when}": round(one["block_efficiency"], 4) for when, one in points.items()
        }


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


_Config = TypeVar("_Config", bound=TrainingConfig)
_Prepared = TypeVar("_Prepared")


@dataclass(eq=False)
class TargetDistillation(ABC, Generic[_Config, _Prepared]):
    """The drafter in training, the frozen target, and the data to compare them on.

    Attributes:
        config: Temperature, batch size and seed.
        target: The target, which gives p.
        prepared: What the trainer prepared, such as the model to train.
        data: The rows to train and measure on.
        dtype: Data type of matrix products in training. Evaluation uses the models' own.
        parameters: The parameters by name, changed in place.
        embedding_names: Names of the parameters that are embedding matrices.
    """

    config: _Config
    target: LoadedModel
    prepared: _Prepared
    data: TrainingData
    dtype: torch.dtype
    parameters: Mapping[str, Tensor] = field(init=False)
    embedding_names: Collection[str] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._batches = Batches(self.data.pools, self.config.batch_tokens, self.config.seed)
        self._part = max(1, LARGEST_LOGITS // self.target.vocab_size)

    def measure(self) -> Mapping[str, float]:
        """Return the held-out acceptance rates."""
        return self.scores().point()

    def scores(self) -> Scores:
        """Compare drafter and target on the held-out data, without autocast."""
        parts = [self.scored(part.to(self.target.device)) for part in self.data.held_out.split(self._part)]
        return sum(parts[1:], start=parts[0])

    def scored(self, rows: Rows) -> Scores:
        """Compare drafter and target on some rows, on the target's device."""
        raise NotImplementedError

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
            for number, loss in enumerate(self.losses(part.to(self.target.device), done), start=1):
                (loss / positions).backward()  # type: ignore[no-untyped-call]
                total, models = total + float(loss.detach()), max(models, number)
        return StepResult(total / positions / models, positions)


_Trained = TypeVar("_Trained", bound=TargetDistillation[Any, Any])


class WeightsTrainer(Trainer, Generic[_Trained]):
    """Trains weights by gradients and writes them with their learning curve.

    The result is a file with the curve beside it, or a folder that holds the curve.

    Attributes:
        drafter: Name of the drafter that uses the result.
        result: What is written, for the display of progress.
        folder_with: Name of a file that every result folder holds; None for a result that is a file.
        distillation: Class of the trained part, which is made of the result of `prepare` and the data.
    """

    drafter: ClassVar[str]
    result: ClassVar[str]
    folder_with: ClassVar[str | None] = None
    distillation: type[_Trained]

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
        rate, dtype = config.learning_rate or self.rate, autocast_dtype(config.dtype, target.device)
        folder = TrainingFolder(config.output, _settings(config, target, rate, dtype))
        folder.begin(resume=config.resume, overwrite=config.overwrite)
        try:
            if config.resume:
                data = folder.load_rows()
            else:
                data = gather(config, target, progress)
                folder.save_rows(data)
            distillation = self.distillation(config, target, prepared, data, dtype)
            trained = train(distillation, config, rate, folder, progress)
        except BaseException:
            folder.tidy()  # only a checkpoint, if any, is left
            raise
        run = TrainingRun(trained, data.held_out.positions)
        progress.stage(f"writing {self.result}")
        facts = self.write(distillation, target, run)
        if self.folder_with is None:
            with writing_file(curve_path(config.output)) as temporary:
                write_points(run.trained.curve, temporary)
        folder.remove()
        return TrainingReport(tuple(outputs), facts, usage(self.drafter, "model", config.output))


def curve_path(output: Path) -> Path:
    """Return the path of the learning curve beside a result."""
    return output.with_suffix(".curve.jsonl")


def card_of(config: TrainingConfig, target: LoadedModel, facts: Mapping[str, str | int | float]) -> dict[str, Any]:
    """Return the header of a file of weights: their target, and facts with the text they were trained on."""
    assert target.features is not None
    names = ("text", "samples", "sources", "temperature", "seed")
    given = {name: without_home(str(value)) for name in names if (value := getattr(config, name)) is not None}
    own = target.features.fingerprint()
    return {"target": without_home(target.name), "fingerprint": own, "facts": {**given, **facts}}


def usage(drafter: str, key: str, path: Path) -> str:
    """Return how a study names a trained drafter: a YAML mapping in one line.

    Args:
        drafter: Name of the drafter.
        key: The setting that takes the path.
        path: The file or folder that was written. Quoted as JSON, so that YAML reads any path.
    """
    return f"{{name: {drafter}, {key}: {json.dumps(str(path), ensure_ascii=False)}}}"
