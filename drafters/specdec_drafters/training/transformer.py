"""`specdec train transformer`: a small model is trained to say what the target would say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec_core.border import Trainer, TrainingObserver, TrainingReport
from specdec_core.models import LoadedModel, load_model, without_progress_bar
from specdec_core.output import check_output, writing_folder
from specdec_core.settings import ModelSettings
from specdec_drafters.configs import TransformerTrainerConfig
from specdec_drafters.draft_model import load_draft_model
from specdec_drafters.training.agreement import Agreement, agreement
from specdec_drafters.training.course import LARGEST_LOGITS, Course, follow
from specdec_drafters.training.curve import write_curve
from specdec_drafters.training.forward import alike, autocast, row_logits
from specdec_drafters.training.loop import StepResult, Task, Trained
from specdec_drafters.training.losses import cross_entropy, distillation, tv_share
from specdec_drafters.training.new_models import new_model
from specdec_drafters.training.rows import Batches, Rows
from specdec_drafters.training.sources import Material, check_length, check_source_lengths
from specdec_drafters.training.wording import usage

NEW_RATE, START_RATE = 4e-3, 1e-3
"""Highest learning rates of a new model, and of one that has been trained before."""


class TransformerTrainer(Trainer):
    """Trains a model for the transformer drafter, by the text's tokens or by the target's distributions.

    References:
        Corollary 3.6 and section 3.6 of arXiv 2211.17192.
    """

    Config = TransformerTrainerConfig
    config: TransformerTrainerConfig
    """What was asked for."""

    def train(self, observer: TrainingObserver) -> TrainingReport:
        """Train; the result is an ordinary model folder, with the learning curve in it.

        Raises:
            SpecdecError: What was given cannot be trained on, or the result not be written. Once there is a
                checkpoint it stays, and the training can be resumed.
        """
        config = self.config
        check_output(config.output, config.overwrite, folder_with="config.json")
        observer.stage("loading models")
        target = load_model(config.target, device=config.device)
        drafter = self._drafter(target)

        def task(material: Material, dtype: torch.dtype) -> Task:
            check_source_lengths(material, drafter)
            return Lesson(config, target, drafter, material, dtype).task()

        course = follow(config, target, self._rate, task, observer)
        drafter.model.eval()
        observer.stage("writing the model")
        curve = self._write(drafter, target, course.trained)
        course.folder.remove()
        return self._report(drafter, course, curve)

    @property
    def _rate(self) -> float:
        return self.config.learning_rate or (NEW_RATE if self.config.model is None else START_RATE)

    def _drafter(self, target: LoadedModel) -> LoadedModel:
        """Return the model that is trained, in float32 on the target's device.

        Raises:
            ModelError: It numbers its tokens otherwise, or has an encoder where the target has none.
            ConfigError: It takes fewer tokens than the rows have.
        """
        config = self.config
        if config.model is None:
            return new_model(target, *config.sizes, config.seed)
        settings = ModelSettings(model=config.model, dtype="float32")
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

    def _report(self, drafter: LoadedModel, course: Course, curve: str) -> TrainingReport:
        before, after = course.trained.curve[0], course.trained.curve[-1]
        facts: dict[str, str | int | float] = {
            **course.facts(sum(weight.numel() for weight in drafter.model.parameters())),
            "loss": round(after.get("loss", float("nan")), 4),
            "alpha before": _with_error(before, "alpha"),
            "alpha after": _with_error(after, "alpha"),
            "equal argmax before": _with_error(before, "argmax"),
            "equal argmax after": _with_error(after, "argmax"),
            "curve": curve,
        }
        output = self.config.output
        return TrainingReport((output,), facts, usage("transformer", "model", output))


def _with_error(point: dict[str, float], name: str) -> str:
    error = point.get(f"{name}_error")
    return f"{point[name]:.4f}" + ("" if error is None else f" (standard error {error:.4f})")


class Lesson:
    """A drafter, a target that does not change, and rows to compare them on.

    Args:
        config: Loss, temperature, batch and seed.
        target: Gives p.
        drafter: Is trained.
        material: The rows.
        dtype: Of matrix products while training. Measurements are made in the models' own.
    """

    def __init__(
        self,
        config: TransformerTrainerConfig,
        target: LoadedModel,
        drafter: LoadedModel,
        material: Material,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._target = target
        self._drafter = drafter
        self._held_out = material.held_out
        self._batches = Batches(material.pools, config.batch_tokens, config.seed)
        self._dtype = dtype
        self._part = max(1, LARGEST_LOGITS // max(target.vocab_size, drafter.vocab_size))

    def task(self) -> Task:
        """Return what the loop needs."""
        model = self._drafter.model
        embeddings = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
        parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        apart = [name for name, weight in parameters.items() if id(weight) in embeddings]
        return Task(parameters, self.gradients, self.measure, apart)

    def gradients(self, step: int, done: float) -> StepResult:
        """Add the gradients of a step's mean loss, part by part."""
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
        """Return the loss summed over the positions of some rows."""
        config = self._config
        with autocast(self._dtype, self._target.device):
            logits = row_logits(self._drafter, rows)
        if config.loss == "ce":
            return cross_entropy(logits, rows.tokens[rows.mask]) * len(logits)
        with torch.inference_mode(), autocast(self._dtype, self._target.device):
            p_logits = row_logits(self._target, rows)
        p_logits, logits = alike(p_logits, logits)
        return distillation(p_logits, logits, tv_share(config.loss, done), config.temperature)[0]

    def measure(self) -> dict[str, float]:
        """Return the held-out alpha and the share of equal argmaxes, with standard errors."""
        return self.agreement().point()

    def agreement(self) -> Agreement:
        """Compare the two on the held-out rows, without autocast."""
        self._drafter.model.eval()
        with torch.inference_mode():
            return agreement(self._compared(), self._config.temperature)

    def _compared(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in self._held_out.split(self._part):
            rows = part.to(self._target.device)
            p_logits, logits = alike(row_logits(self._target, rows), row_logits(self._drafter, rows))
            yield p_logits, logits, rows.mask.sum(1)
