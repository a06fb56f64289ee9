"""`specdec train early-exit`: chooses after how many layers a target exits, and trains that exit."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from specdec_core.models import LoadedModel
from specdec_drafters.early_exit.drafter import (
    ExitCard,
    ExitWorth,
    best_of,
    exit_after,
    exit_alphas,
    layer_count,
    worth_of_each,
    write_exit,
)
from specdec_drafters.settings import EarlyExitTrainerConfig
from specdec_drafters.training.losses import cross_entropy, distillation, tv_share
from specdec_drafters.training.rows import Rows, autocast, row_logits
from specdec_drafters.training.trainer import TargetDistillation, TrainingRun, WeightsTrainer, card_of


def _translator(model: LoadedModel) -> Tensor:
    translator: Tensor = model.model.get_output_embeddings().translator
    return translator


def _alpha(layers: int) -> str:
    return f"alpha_{layers}"


def _worths(exits: Mapping[int, LoadedModel], point: Mapping[str, float], target: LoadedModel) -> list[ExitWorth]:
    """Return what is expected of each exit, by a point of the learning curve."""
    return worth_of_each(exits, {layers: point[_alpha(layers)] for layers in exits}, target)


class Distillation(TargetDistillation[EarlyExitTrainerConfig, dict[int, LoadedModel]]):
    """Exits by their number of layers, the target that they share layers with, and the data to compare them on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parameters = {str(layers): _translator(model) for layers, model in self.prepared.items()}

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the loss of each exit, summed over the positions of some rows."""
        config = self.config
        with torch.no_grad(), autocast(self.dtype, self.target.device):
            p_logits = row_logits(self.target, rows)
        for model in self.prepared.values():
            with autocast(self.dtype, self.target.device):
                logits = row_logits(model, rows)
            if config.loss == "ce":
                yield cross_entropy(logits, rows.tokens[rows.mask]) * len(logits)
            else:
                yield distillation(p_logits, logits, tv_share(config.loss, done), config.temperature)[0]

    def measure(self) -> dict[str, float]:
        """Return the held-out acceptance rate of each exit, and that of the best."""
        alphas = exit_alphas(self.prepared, self.target, self.data.held_out, self.config.temperature)
        best = best_of(worth_of_each(self.prepared, alphas, self.target))
        point = {_alpha(layers): alpha for layers, alpha in alphas.items()}
        return {"alpha": best.alpha, "layers": float(best.layers), **point}


class EarlyExitTrainer(WeightsTrainer[Distillation]):
    """Trains exits for the early-exit drafter, and keeps the best. The target is frozen.

    An exit is a linear map of the normalized states after some layers, in front of the target's head. It starts as
    the identity, that is, as the untrained exit.

    References:
        Belrose et al. 2023 (arXiv 2303.08112), who train such a map for every layer; Corollary 3.6 and Theorem 3.8
        of arXiv 2211.17192 for the loss and the choice.
    """

    config: EarlyExitTrainerConfig
    """The settings."""

    drafter = "early-exit"
    result = "the exit"
    rate = 4e-3
    distillation = Distillation

    def prepare(self, target: LoadedModel) -> dict[int, LoadedModel]:
        """Return the exits before training, by their number of layers."""
        target.model.requires_grad_(requires_grad=False)
        tried = range(1, layer_count(target) // 2 + 1) if self.config.layers is None else [self.config.layers]
        width = target.model.get_output_embeddings().weight.shape[1]
        # Each begins with an identity of its own, since it is trained in place.
        exits = {layers: exit_after(target, layers, torch.eye(width)) for layers in tried}
        for model in exits.values():
            _translator(model).requires_grad_()
        return exits

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the file of the best exit."""
        exits, before = trained.prepared, run.trained.curve[0]
        worths = _worths(exits, run.trained.curve[-1], target)
        best = best_of(worths)
        facts: dict[str, str | int | float] = {
            **run.facts(_translator(exits[best.layers]).numel()),
            "loss": self.config.loss,
        }
        for worth in worths:
            facts[f"exit after {worth.layers}"] = (
                f"alpha {before[_alpha(worth.layers)]:.3f} untrained, {worth.alpha:.3f} trained; "
                f"{worth.c:.2f} of the weights; expected speed-up {worth.speedup:.2f} with gamma {worth.gamma}"
            )
        facts["layers"] = best.layers
        card = ExitCard(layers=best.layers, **card_of(self.config, target, facts))
        write_exit(self.config.output, _translator(exits[best.layers]), card)
        return facts
