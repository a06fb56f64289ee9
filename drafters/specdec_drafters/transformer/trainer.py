"""`specdec train transformer`: trains a small model to imitate the target."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec_core.interface import ModelSettings
from specdec_core.interface.files import writing_folder
from specdec_core.models import LoadedModel, without_progress_bar
from specdec_drafters.common.draft_model_loading import load_draft_model
from specdec_drafters.training.agreement import Agreement, agreement
from specdec_drafters.training.curve import write_curve
from specdec_drafters.training.loop import Objective
from specdec_drafters.training.losses import cross_entropy, distillation, tv_share
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.run import TrainingRun
from specdec_drafters.training.sequence_logits import autocast, row_logits, same_width
from specdec_drafters.training.sources import TrainingData, check_length, check_source_lengths
from specdec_drafters.training.trainer import TargetDistillation, WeightsTrainer
from specdec_drafters.transformer.config import TransformerTrainerConfig
from specdec_drafters.transformer.new_models import new_model

NEW_RATE, START_RATE = 4e-3, 1e-3
"""Peak learning rates of a new model, and of a pretrained one."""


class TransformerTrainer(WeightsTrainer["Distillation"]):
    """Trains a model for the transformer drafter, on the tokens of a text or on the target's distributions.

    References:
        Corollary 3.6 and section 3.6 of arXiv 2211.17192.
    """

    config: TransformerTrainerConfig
    """The settings."""

    drafter = "transformer"
    result = "the model"
    folder_with = "config.json"

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return NEW_RATE if self.config.model is None else START_RATE

    def distillation(
        self, target: LoadedModel, prepared: LoadedModel, data: TrainingData, dtype: torch.dtype
    ) -> Distillation:
        """Return the model with the target and the data."""
        return Distillation(self.config, target, prepared, data, dtype)

    def prepare(self, target: LoadedModel) -> LoadedModel:
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

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the model folder with the tokenizer and the learning curve."""
        model = trained.drafter.model.eval()
        with writing_folder(self.config.output) as temporary, without_progress_bar():
            model.to(getattr(torch, self.config.saved_as)).save_pretrained(temporary)
            if target.tokenizer is not None:
                target.tokenizer.save_pretrained(temporary)
            curve = write_curve(run.trained.curve, temporary)
        return {
            **run.facts(sum(weight.numel() for weight in model.parameters())),
            "trained length": f"{self.config.length} tokens; in longer texts, fewer drafts may be accepted",
            "loss": round(run.trained.curve[-1].get("loss", float("nan")), 4),
            **self.results(run),
            "curve": curve,
        }

    def results(self, run: TrainingRun) -> dict[str, str | float]:
        """Return the acceptance before and after training, for the report."""
        before, after = run.trained.curve[0], run.trained.curve[-1]
        return {
            "alpha before": _with_error(before, "alpha"),
            "alpha after": _with_error(after, "alpha"),
            "greedy alpha before": _with_error(before, "greedy_alpha"),
            "greedy alpha after": _with_error(after, "greedy_alpha"),
        }


def _with_error(point: dict[str, float], name: str) -> str:
    error = point.get(f"{name}_error")
    return f"{point[name]:.4f}" + ("" if error is None else f" (standard error {error:.4f})")


class Distillation(TargetDistillation):
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
        check_source_lengths(data, drafter)
        super().__init__(config, target, data, dtype, max(target.vocab_size, drafter.vocab_size))
        self._config, self.drafter = config, drafter

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        model = self.drafter.model
        embeddings = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        embedding_names = [name for name, weight in parameters.items() if id(weight) in embeddings]
        return Objective(parameters, self.gradients, self.measure, embedding_names)

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the loss, summed over the positions of some rows."""
        self.drafter.model.train()
        config = self._config
        with autocast(self._dtype, self._target.device):
            logits = row_logits(self.drafter, rows)
        if config.loss == "ce":
            yield cross_entropy(logits, rows.tokens[rows.mask]) * len(logits)
            return
        with torch.inference_mode(), autocast(self._dtype, self._target.device):
            p_logits = row_logits(self._target, rows)
        p_logits, logits = same_width(p_logits, logits)
        yield distillation(p_logits, logits, tv_share(config.loss, done), config.temperature)[0]

    def measure(self) -> dict[str, float]:
        """Return the held-out alpha and greedy alpha, with standard errors."""
        return self.agreement().point()

    def agreement(self) -> Agreement:
        """Compare the two on the held-out data, without autocast."""
        self.drafter.model.eval()
        with torch.inference_mode():
            return agreement(self._compared(), self._config.temperature)

    def _compared(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in self._held_out.split(self._part):
            rows = part.to(self._target.device)
            p_logits, logits = same_width(row_logits(self._target, rows), row_logits(self.drafter, rows))
            yield p_logits, logits, rows.mask.sum(1)
