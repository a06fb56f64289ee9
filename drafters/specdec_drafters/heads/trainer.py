"""`specdec train heads`: trains heads on a target's hidden state to predict its next tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel
from specdec_drafters.heads.config import HeadsTrainerConfig
from specdec_drafters.heads.file import HeadsCard, write_heads
from specdec_drafters.heads.loss import HeadsLoss, Reading
from specdec_drafters.heads.model import Heads, HeadsShape
from specdec_drafters.training.config import text_facts, without_home
from specdec_drafters.training.draft_scores import Scores
from specdec_drafters.training.loop import Objective, StepResult
from specdec_drafters.training.losses import tv_share
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.run import TrainingRun
from specdec_drafters.training.sequence_logits import autocast
from specdec_drafters.training.sources import TrainingData
from specdec_drafters.training.trainer import TargetDistillation, WeightsTrainer

LEARNING_RATE = 1e-2
"""Default peak learning rate."""


class HeadsTrainer(WeightsTrainer["Distillation"]):
    """Trains heads for the heads drafter. The target is frozen.

    One target forward pass gives the hidden states and the distributions at all positions of a text, and all heads
    learn from all of them: head i at position t is compared with the target's distribution at t + 1 + i.

    References:
        Stern, Shazeer and Uszkoreit 2018, section 6 (arXiv 1811.03115), who trained on the tokens of the text, one
        random head per step; Corollary 3.6 of arXiv 2211.17192 for the total variation.
    """

    config: HeadsTrainerConfig
    """The settings."""

    drafter = "heads"
    result = "the heads"
    rate = LEARNING_RATE

    def prepare(self, target: LoadedModel) -> Heads:
        """Return the heads before training."""
        return Heads(heads_shape(self.config, target), self.config.seed).to(_output_device(target))

    def distillation(
        self, target: LoadedModel, prepared: Heads, data: TrainingData, dtype: torch.dtype
    ) -> Distillation:
        """Return the heads with the target and the data."""
        return Distillation(self.config, target, prepared, data, dtype)

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the file of the heads."""
        heads, facts = trained.heads, self._facts(trained.heads, run)
        assert target.features is not None
        card = HeadsCard(
            **vars(heads.shape),
            vocab_size=target.vocab_size,
            target=without_home(target.name),
            fingerprint=target.features.fingerprint(),
            facts={**text_facts(self.config), **facts},
        )
        write_heads(self.config.output, heads, card)
        return facts

    def _facts(self, heads: Heads, run: TrainingRun) -> dict[str, str | int | float]:
        before, after = run.trained.curve[0], run.trained.curve[-1]
        return {
            **run.facts(sum(weight.numel() for weight in heads.parameters())),
            "loss": self.config.loss,
            **{
                f"{what} {when}": _by_head(point, name)
                for what, name in (
                    ("alpha of each head", "alpha_"),
                    ("greedy alpha of each head", "greedy_alpha_"),
                )
                for when, point in (("before", before), ("after", after))
            },
            "block efficiency before": round(before["block_efficiency"], 4),
            "block efficiency after": round(after["block_efficiency"], 4),
        }


def heads_shape(config: HeadsTrainerConfig, target: LoadedModel) -> HeadsShape:
    """Return the sizes of the heads for a config.

    Raises:
        ModelError: The target has no output embedding.
    """
    features = target.features
    if features is None:
        raise ModelError(
            f"{target.name} has no output embedding that heads could use; train another kind of drafter."
        )
    token_size = features.input_embeddings.shape[1] if config.reads_token else 0
    return HeadsShape(config.heads, features.hidden_size, config.width or features.hidden_size, token_size)


def _output_device(target: LoadedModel) -> torch.device:
    assert target.features is not None
    return target.features.output_embeddings.device


def _by_head(point: Mapping[str, float], name: str) -> str:
    values = [value for key, value in point.items() if key.startswith(name)]
    return ", ".join(f"{value:.3f}" for value in values)


def read_rows(target: LoadedModel, rows: Rows) -> Reading:
    """Run the target over training sequences and return its hidden states in float32.

    Args:
        target: The target; its encoder, if any, reads the sources.
        rows: The sequences, on its device.
    """
    assert target.features is not None
    keywords: dict[str, Any] = {"input_ids": rows.tokens}
    if target.encoder_decoder:
        assert rows.source_mask is not None, "an encoder needs sources"
        mask = rows.source_mask.long()
        keywords = {"input_ids": rows.sources, "attention_mask": mask, "decoder_input_ids": rows.tokens}
    # Padding is on the right and attention is causal, so the decoder needs no mask.
    with torch.no_grad(), target.features.capture() as seen:
        target.model(**keywords, use_cache=False)
    hidden = seen[-1].float()
    return Reading(rows.tokens.to(hidden.device), rows.mask.to(hidden.device), hidden)


class Distillation(TargetDistillation):
    """Heads, the target they read, and the data to train and evaluate them on.

    Args:
        config: Loss, temperature, batch size and seed.
        target: The target, which gives hidden states and p.
        heads: The heads to train.
        data: The rows to train and measure on.
        dtype: Data type of matrix products in training. Evaluation uses the target's own.
    """

    def __init__(
        self,
        config: HeadsTrainerConfig,
        target: LoadedModel,
        heads: Heads,
        data: TrainingData,
        dtype: torch.dtype,
    ) -> None:
        assert target.features is not None
        super().__init__(config, target, data, dtype)
        self._config, self.heads = config, heads
        output = target.features.output_embeddings[: target.vocab_size]
        read = target.features.input_embeddings if heads.shape.reads_token else None
        self._training = HeadsLoss(heads, output.to(dtype), read, config.temperature)
        self._measuring = HeadsLoss(heads, output, read, config.temperature)
        self._views = dict(_views(heads))

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        embedding_names = [name for name in self._views if name.endswith("bias")]
        return Objective(self._views, self.gradients, self.measure, embedding_names)

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part."""
        self.heads.zero_grad()
        rows = self._batches.at(step)
        positions = sum(one.positions for one in rows)
        scale = 1 / (positions * self.heads.shape.heads)
        share = None if self._config.loss == "ce" else tv_share(self._config.loss, done)
        total = number = 0.0
        for part in (part for one in rows for part in one.split(self._part)):
            with autocast(self._dtype, self._target.device):
                reading = read_rows(self._target, part.to(self._target.device))
                losses, counts = self._training.backward(reading, share, scale)
            total, number = total + float(losses.sum()), number + float(counts.sum())
        self._copy_gradients()
        return StepResult(total / max(number, 1), positions)

    def _copy_gradients(self) -> None:
        """Copy the gradients of the stacked weights to their views."""
        stacked = dict(self.heads.named_parameters())
        for name, view in self._views.items():
            whole, _, head = name.partition("/")
            gradient = stacked[whole].grad
            if gradient is None:
                view.grad = torch.zeros_like(view)
            else:
                view.grad = _part_of(gradient, self.heads.shape, int(head)) if head else gradient

    def measure(self) -> dict[str, float]:
        """Return the held-out acceptance rates, by head and for all heads together."""
        return self.scores().point()

    def scores(self) -> Scores:
        """Compare the heads with the target on the held-out data, without autocast."""
        parts = [
            self._measuring.scores(read_rows(self._target, part.to(self._target.device)))
            for part in self._held_out.split(self._part)
        ]
        return sum(parts[1:], start=parts[0])


def _views(heads: Heads) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by name, with one matrix per head.

    They share memory with the stacked weights. The optimizer treats a matrix as a whole, and the matrices of
    different heads are independent.
    """
    for name, weight in heads.named_parameters():
        if name.endswith("bias"):
            yield name, weight.detach().requires_grad_()
            continue
        for head in range(heads.shape.heads):
            yield f"{name}/{head}", _part_of(weight.detach(), heads.shape, head).requires_grad_()


def _part_of(weight: Tensor, shape: HeadsShape, head: int) -> Tensor:
    """Return the matrix of one head within a stacked weight."""
    return weight.view(shape.heads, shape.width, -1)[head]
