"""`specdec train transformer`: trains a small model to imitate the target."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec_core.interface import (
    ModelSettings,
    Progress,
    Trainer,
    TrainingReport,
    check_output,
    writing_folder,
)
from specdec_core.models import LoadedModel, load_model, without_progress_bar
from specdec_drafters.common.loading import load_draft_model
from specdec_drafters.training.agreement import Agreement, agreement
from specdec_drafters.training.config import usage
from specdec_drafters.training.curve import write_curve
from specdec_drafters.training.forward import autocast, row_logits, same_width
from specdec_drafters.training.loop import Objective, StepResult, Trained
from specdec_drafters.training.losses import cross_entropy, distillation, tv_share
from specdec_drafters.training.rows import Batches, Rows
from specdec_drafters.training.run import LARGEST_LOGITS, TrainingRun, run_training
from specdec_drafters.training.sources import TrainingData, check_length, check_source_lengths
from specdec_drafters.transformer.config import TransformerTrainerConfig
from specdec_drafters.transformer.new_models import new_model

NEW_RATE, START_RATE = 4e-3, 1e-3
"""Peak learning rates of a new model, and of a pretrained one."""


class TransformerTrainer(Trainer):
    """Trains a model for the transformer drafter, on the tokens of a text or on the target's distributions.

    References:
        Corollary 3.6 and section 3.6 of arXiv 2211.17192.
    """

    Config = TransformerTrainerConfig
    config: TransformerTrainerConfig
    """The settings."""

    def train(self, progress: Progress) -> TrainingReport:
        """Train; the result is a model folder that also holds the learning curve.

        Raises:
            SpecdecError: The data is unusable, or the result cannot be written. Checkpoints are kept, and the run
                can be resumed.
        """
        config = self.config
        check_output(config.output, config.overwrite, folder_with="config.json")
        progress.stage("loading models")
        target = load_model(config.target, device=config.device, packed=False, compile=False)
        drafter = self._drafter(target)

        def objective(data: TrainingData, dtype: torch.dtype) -> Objective:
            check_source_lengths(data, drafter)
            return Distillation(config, target, drafter, data, dtype).objective()

        run = run_training(config, target, self._rate, objective, progress)
        drafter.model.eval()
        progress.stage("writing the model")
        curve = self._write(drafter, target, run.trained)
        run.folder.remove()
        return self._report(drafter, run, curve)

    @property
    def _rate(self) -> float:
        return self.config.learning_rate or (NEW_RATE if self.config.model is None else START_RATE)

    def _drafter(self, target: LoadedModel) -> LoadedModel:
        """Return the model to train, in float32 on the target's device.

        Raises:
            ModelError: Its vocabulary differs from the target's, or only one of them has an encoder.
            ConfigError: It takes fewer tokens than the training sequences have.
        """
        config = self.config
        if config.model is None:
            return new_model(target, *config.sizes, config.seed)
        settings = ModelSettings(model=config.model, dtype="float32", packed=False, compile=False)
        drafter = load_draft_model(settings, target.info(), "transformer")
        check_length(config.length, drafter)
        return drafter

    def _write(self, drafter: LoadedModel, target: LoadedModel, trained: Trained) -> str:
        config = self.config
        with writing_folder(config.output) as place, without_progress_bar():
            drafter.model.to(getattr(torch, config.saved_as)).save_pretrained(place)
            if target.tokenizer is not None:
                target.tokenizer.save_pretrained(place)
            return write_curve(trained.curve, place)

    def _report(self, drafter: LoadedModel, run: TrainingRun, curve: str) -> TrainingReport:
        before, after = run.trained.curve[0], run.trained.curve[-1]
        facts: dict[str, str | int | float] = {
            **run.facts(sum(weight.numel() for weight in drafter.model.parameters())),
            "loss": round(after.get("loss", float("nan")), 4),
            "alpha before": _with_error(before, "alpha"),
            "alpha after": _with_error(after, "alpha"),
            "greedy alpha before": _with_error(before, "greedy_alpha"),
            "greedy alpha after": _with_error(after, "greedy_alpha"),
            "curve": curve,
        }
        output = self.config.output
        return TrainingReport((output,), facts, usage("transformer", "model", output))


def _with_error(point: dict[str, float], name: str) -> str:
    error = point.get(f"{name}_error")
    return f"{point[name]:.4f}" + ("" if error is None else f" (standard error {error:.4f})")


class Distillation:
    """A draft model, a frozen target, and the data to compare them on.

    Args:
        config: Loss, temperature, batch size and seed.
        target: The target, which gives p.
        drafter: The model to train.
        data: The rows to train and measure on.
        dtype: Data type of matrix products in training. Evaluation uses the models' own.
    """

    def __init__(
        self,
        config: TransformerTrainerConfig,
        target: LoadedModel,
        drafter: LoadedModel,
        data: TrainingData,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._target = target
        self._drafter = drafter
        self._held_out = data.held_out
        self._batches = Batches(data.pools, config.batch_tokens, config.seed)
        self._dtype = dtype
        self._part = max(1, LARGEST_LOGITS // max(target.vocab_size, drafter.vocab_size))

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        model = self._drafter.model
        embeddings = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        embedding_names = [name for name, weight in parameters.items() if id(weight) in embeddings]
        return Objective(parameters, self.gradients, self.measure, embedding_names)

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part."""
        self._drafter.model.train()
        parts = [part for rows in self._batches.at(step) for part in rows.split(self._part)]
        positions = sum(part.positions for part in parts)
        total = 0.0
        for part in parts:
            loss = self._loss(part.to(self._target.device), done)
            (loss / positions).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return StepResult(total / positions, positions)

    def _loss(self, rows: Rows, done: float) -> Tensor:
        """Return the loss, summed over the positions of some rows."""
        config = self._config
        with autocast(self._dtype, self._target.device):
            logits = row_logits(self._drafter, rows)
        if config.loss == "ce":
            return cross_entropy(logits, rows.tokens[rows.mask]) * len(logits)
        with torch.inference_mode(), autocast(self._dtype, self._target.device):
            p_logits = row_logits(self._target, rows)
        p_logits, logits = same_width(p_logits, logits)
        return distillation(p_logits, logits, tv_share(config.loss, done), config.temperature)[0]

    def measure(self) -> dict[str, float]:
        """Return the held-out alpha and greedy alpha, with standard errors."""
        return self.agreement().point()

    def agreement(self) -> Agreement:
        """Compare the two on the held-out data, without autocast."""
        self._drafter.model.eval()
        with torch.inference_mode():
            return agreement(self._compared(), self._config.temperature)

    def _compared(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in self._held_out.split(self._part):
            rows = part.to(self._target.device)
            p_logits, logits = same_width(row_logits(self._target, rows), row_logits(self._drafter, rows))
            yield p_logits, logits, rows.mask.sum(1)
