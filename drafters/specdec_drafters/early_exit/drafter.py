"""The early-exit drafter: the target's first layers, its final norm and its head (self-speculation)."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from specdec_core.interface import ConfigError, ModelError, TargetInfo
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.trainer import NoProgress
from specdec_core.models import LoadedModel, first_layers
from specdec_core.theory.speed import optimal_gamma, walltime_improvement
from specdec_drafters.common.draft_model_loading import compiled_like, target_model
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.common.weights_file import WeightsCard, WeightsFormat, require_sizes
from specdec_drafters.settings import EarlyExitConfig
from specdec_drafters.training.losses import overlap
from specdec_drafters.training.rows import LARGEST_LOGITS, Rows, pad_rows, row_logits
from specdec_drafters.training.sources import own_samples

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


_TENSOR = "translator"


class ExitCard(WeightsCard):
    """The header of a file of a trained exit.

    Attributes:
        layers: Number of the target's layers before the exit.
    """

    layers: int = Field(ge=1)


EXIT_FILE = WeightsFormat(
    what="exit",
    name="early-exit.safetensors",
    key="specdec_early_exit",
    card=ExitCard,
    how_to_train="Train an exit with `specdec train early-exit --target TARGET --output early-exit.safetensors`.",
)


def write_exit(path: Path, translator: Tensor, card: ExitCard, dtype: torch.dtype = torch.float16) -> None:
    """Write a trained exit, the map `[D, D]` of the states before the head; see `WeightsFormat.write`."""
    EXIT_FILE.write(path, {_TENSOR: translator}, card, dtype)


def read_exit(path: Path) -> tuple[Tensor, ExitCard]:
    """Read a trained exit.

    Returns:
        Its translator `[D, D]`, in float32 on the CPU, and its header.

    Raises:
        ModelError: The file is missing, truncated, not of an exit, or of an unknown version.
    """
    tensors, card = EXIT_FILE.read(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes.keys() != {_TENSOR} or len(shapes[_TENSOR]) != 2 or len(set(shapes[_TENSOR])) != 1:
        raise ModelError(
            f"{path}: the weights are {shapes}; expected one square matrix, {_TENSOR}. {EXIT_FILE.how_to_train}"
        )
    return tensors[_TENSOR].float(), card


_SAMPLES, _LENGTH = 512, 64
"""Tokens that the target writes, and their number in a text, to choose an exit by."""


class EarlyExitDrafter(ModelDrafter):
    """Drafts with the target's first layers, followed by its own final norm and head.

    It needs no second model, and no memory but a KV cache for those layers. q is the distribution of the exit,
    whatever the target's later layers make of it.

    References:
        LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710); Draft & Verify (Zhang et al. 2023, arXiv 2309.08168).

    Attributes:
        layers: Number of the target's layers that draft.
    """

    def __init__(self, config: EarlyExitConfig, target: TargetInfo) -> None:
        own = target_model(target, "early-exit")
        self.layers, translator = config.layers, None
        if config.model is not None:
            path = EXIT_FILE.find(config.model, target.folder)
            translator, card = read_exit(path)
            EXIT_FILE.check_target(card, own.features, path, "early-exit")
            assert own.features is not None, "an exit is trained for a target with an output embedding"
            # The fingerprint implies it; this catches a header written by hand.
            sizes = {"hidden states": (len(translator), own.features.hidden_size)}
            require_sizes(sizes, path, "early-exit", EXIT_FILE.how_to_train)
            if config.layers not in (None, card.layers):
                raise ConfigError(
                    f"drafter 'early-exit': layers is {config.layers}, but {path} was trained for an exit after "
                    f"{card.layers} layers. Remove 'layers', or train another exit."
                )
            self.layers = card.layers
        if self.layers is None:
            self.layers = _measured(own).layers
        super().__init__(config, target, compiled_like(own, exit_after(own, self.layers, translator)))


def _measured(target: LoadedModel) -> ExitWorth:
    """Return the exit to take, by its acceptance rate on a text that the target writes.

    Raises:
        ConfigError: The target writes nothing without a prompt.
    """
    try:
        written = own_samples(target, _SAMPLES, 0, NoProgress(), length=_LENGTH)
    except ConfigError as error:
        raise ConfigError(
            f"drafter 'early-exit': give 'layers', or a trained exit in 'model'. {target.name} has an encoder, or "
            "no token to begin a text with, so that the exits cannot be compared when it is loaded."
        ) from error
    rows = pad_rows(written, [1] * len(written))
    exits = {layers: exit_after(target, layers) for layers in range(1, layer_count(target))}
    best = best_of(worth_of_each(exits, exit_alphas(exits, target, rows), target))
    if best.gamma == 0:
        warnings.warn(
            f"drafter 'early-exit': no exit of {target.name} is expected to make decoding faster. The best, after "
            f"{best.layers} layers, has an acceptance rate of {best.alpha:.2f} and reads {best.c:.2f} of the "
            f"weights. {EXIT_FILE.how_to_train}",
            PluginWarning,
            stacklevel=2,
        )
    return best
