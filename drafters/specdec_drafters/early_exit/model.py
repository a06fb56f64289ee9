"""A target that exits early, and the worth of the exit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel, first_layers
from specdec_core.theory.speed import optimal_gamma, walltime_improvement
from specdec_drafters.training.losses import overlap
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.run import LARGEST_LOGITS
from specdec_drafters.training.sequence_logits import row_logits

MAX_GAMMA = 16
"""The longest draft that an expected speed-up assumes."""


class ExitHead(nn.Module):
    """The target's output embedding, behind a trained linear map of the states that it reads.

    Args:
        head: The target's output embedding, a linear layer.
        translator: `[D, D]`, applied to the normalized hidden states of an early layer.

    References:
        The translators of the tuned lens (Belrose et al. 2023, arXiv 2303.08112), here after the final norm.
    """

    def __init__(self, head: Any, translator: Tensor) -> None:
        super().__init__()
        self.head = head
        self.translator = nn.Parameter(translator)

    @property
    def weight(self) -> Tensor:
        """The weights of the output embedding, `[V, D]`."""
        weight: Tensor = self.head.weight
        return weight

    def forward(self, states: Tensor) -> Tensor:
        """Return logits `[..., V]` from normalized states `[..., D]`."""
        logits: Tensor = self.head(nn.functional.linear(states, self.translator))
        return logits


def exit_after(target: LoadedModel, layers: int, translator: Tensor | None = None) -> LoadedModel:
    """Return the target's first layers as a model; it shares their weights with the target.

    Args:
        target: The target.
        layers: Number of layers.
        translator: `[D, D]`, the trained exit; None for the target's own norm and head alone.

    Raises:
        ModelError: The target has too few layers, or cannot share them.
    """
    if translator is None:
        return first_layers(target, layers)
    head = target.model.get_output_embeddings()
    placed = translator.to(head.weight.device, head.weight.dtype)
    return first_layers(target, layers, ExitHead(head, placed))


def cost_share(model: LoadedModel, target: LoadedModel) -> float:
    """Return the cost coefficient c that is expected of a model made of the target's layers.

    A forward pass over a few tokens takes the time of reading the weights, so that c is the share of the target's
    that the model reads: all but the encoder's and those of a token embedding that is not the output embedding.
    """
    return _weights_read(model) / _weights_read(target)


def _weights_read(loaded: LoadedModel) -> int:
    model = loaded.model
    own = (model.get_decoder(), model.get_output_embeddings())
    weights = {id(weight): weight.numel() for part in own if part is not None for weight in part.parameters()}
    decoder = own[0] if loaded.encoder_decoder else model
    read, head = decoder.get_input_embeddings(), own[1]
    if read is not None and (head is None or read.weight is not head.weight):
        weights.pop(id(read.weight), None)
    return sum(weights.values())


@dataclass(frozen=True)
class ExitWorth:
    """The expected worth of drafting with an exit.

    Attributes:
        layers: Number of layers before the exit.
        alpha: Its acceptance rate.
        c: Its cost coefficient.
    """

    layers: int
    alpha: float
    c: float

    @property
    def gamma(self) -> int:
        """The best number of draft tokens; 0 if drafting gains nothing."""
        return optimal_gamma(self.alpha, self.c, MAX_GAMMA)

    @property
    def speedup(self) -> float:
        """The expected speed-up (Theorem 3.8) with that gamma; at most 1 if drafting gains nothing."""
        gamma = max(self.gamma, 1)
        return walltime_improvement(self.alpha, gamma, self.c)


def worth_of_each(
    exits: Mapping[int, LoadedModel], alphas: Mapping[int, float], target: LoadedModel
) -> list[ExitWorth]:
    """Return what is expected of exits, by their number of layers, the earliest first.

    Args:
        exits: Models that exit after a number of layers.
        alphas: Their acceptance rates.
        target: The target.
    """
    return [ExitWorth(layers, alphas[layers], cost_share(exits[layers], target)) for layers in sorted(exits)]


def best_of(worths: Iterable[ExitWorth]) -> ExitWorth:
    """Return the exit with the highest expected speed-up, the earliest of equals."""
    return max(worths, key=lambda worth: worth.speedup)


@torch.inference_mode()
def exit_alphas(
    exits: Mapping[int, LoadedModel], target: LoadedModel, rows: Rows, temperature: float = 1.0
) -> dict[int, float]:
    """Return the acceptance rate of each exit: the mean of sum_x min(p(x), q(x)) over the positions of some rows.

    Args:
        exits: Models that exit after a number of layers.
        target: The target.
        rows: The rows.
        temperature: Temperature of p and q.

    References:
        Corollary 3.6 of arXiv 2211.17192.
    """
    sums = dict.fromkeys(exits, 0.0)
    for part in rows.split(max(1, LARGEST_LOGITS // target.vocab_size)):
        placed = part.to(target.device)
        p_logits = row_logits(target, placed).float()
        for layers, model in exits.items():
            sums[layers] += float(overlap(p_logits, row_logits(model, placed).float(), temperature).sum())
    return {layers: total / rows.positions for layers, total in sums.items()}


def layer_count(target: LoadedModel) -> int:
    """Return the number of the target's (decoder's) layers, of which an exit leaves out at least one.

    Raises:
        ModelError: There is one.
    """
    count = 0 if target.features is None else target.features.num_layers
    if count < 2:
        raise ModelError(
            f"{target.name} has no output embedding, or fewer than two layers: there is none to exit after. "
            "Choose another drafter."
        )
    return count


def identity(target: LoadedModel) -> Tensor:
    """Return the translator that changes nothing, `[D, D]` float32."""
    return torch.eye(target.model.get_output_embeddings().weight.shape[1])
