"""The early-exit drafter: the target's first layers, its final norm and its head (self-speculation)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from specdec_core.interface import ConfigError, ModelError, TargetInfo
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.trainer import NoProgress
from specdec_core.models import LoadedModel
from specdec_drafters.common.draft_model_loading import compiled_like, target_model
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.early_exit.config import EarlyExitConfig
from specdec_drafters.early_exit.file import EXIT_FILE, ExitCard, read_exit
from specdec_drafters.early_exit.model import (
    ExitWorth,
    best_of,
    exit_after,
    exit_alphas,
    layer_count,
    worth_of_each,
)
from specdec_drafters.training.rows import pad_rows
from specdec_drafters.training.sources import own_samples

if TYPE_CHECKING:
    from pathlib import Path

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
            _check_target(card, len(translator), path, own)
            if config.layers not in (None, card.layers):
                raise ConfigError(
                    f"drafter 'early-exit': layers is {config.layers}, but {path} was trained for an exit after "
                    f"{card.layers} layers. Remove 'layers', or train another exit."
                )
            self.layers = card.layers
        if self.layers is None:
            self.layers = _measured(own).layers
        super().__init__(config, target, compiled_like(own, exit_after(own, self.layers, translator)))


def _check_target(card: ExitCard, size: int, path: Path, target: LoadedModel) -> None:
    """Raise a ModelError if an exit was trained for another target."""
    EXIT_FILE.check_target(card, target.features, path, "early-exit")
    # The fingerprint implies it; this catches a header written by hand.
    if target.features is not None and size != target.features.hidden_size:
        raise ModelError(
            f"drafter 'early-exit': {path} is for hidden states of size {size}; this target's have "
            f"{target.features.hidden_size}. {EXIT_FILE.how_to_train}"
        )


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
