"""DFlash heads on disk: the config of the speculators package, and the weights that belong to it."""

from __future__ import annotations

from pydantic import Field

from specdec_core.interface import ModelError, TargetInfo
from specdec_drafters.common.draft_heads import (
    check_layers,
    check_sizes,
    head_of,
    target_features,
)
from specdec_drafters.common.speculators import (
    SpeculatorConfig,
    open_checkpoint,
)
from specdec_drafters.dflash.model import ARCHITECTURES, DFlashHead, HeadShape

TYPE = "dflash"
"""The `speculators_model_type`."""


class DFlashSpeculatorConfig(SpeculatorConfig):
    """The keys of a `dflash` config. What they mean: `HeadShape`."""

    draft_vocab_size: int = Field(default=32000, ge=1)
    block_size: int = Field(default=8, ge=1)
    target_hidden_size: int | None = Field(default=None, ge=1)
    aux_hidden_state_layer_ids: list[int]
    mask_token_id: int = Field(ge=0)
    sliding_window_non_causal: bool = False
    sample_from_anchor: bool = False

    def shape(self, model: str) -> HeadShape:
        """Return the sizes of the head.

        Raises:
            ModelError: Its layers are of an architecture that is not supported, or its config says nonsense.
        """
        shape = HeadShape(
            self.layer(model, ARCHITECTURES),
            draft_vocab_size=self.draft_vocab_size,
            states=len(self.aux_hidden_state_layer_ids),
            block_size=self.block_size,
            mask_token_id=self.mask_token_id,
            sample_from_anchor=self.sample_from_anchor,
            sliding_window_non_causal=self.sliding_window_non_causal,
        )
        if shape.drafted < 1:
            raise ModelError(
                f"drafter 'dflash': {model} has a block_size of {self.block_size}, of which the first position "
                "holds the last token, so that it drafts nothing. Choose a head with a larger block_size."
            )
        return shape


def read_dflash(model: str, target: TargetInfo) -> tuple[DFlashHead, tuple[int, ...]]:
    """Read a head for a target.

    Args:
        model: A folder or a hub name.
        target: The target, whose embeddings are taken where the checkpoint has none.

    Returns:
        The head on the device of the target's output embedding and in its data type; and the layers that it reads.

    Raises:
        ModelError: It is not there, is not complete, is of another type, or does not fit the target.
    """
    features = target_features(target, TYPE)
    checkpoint, config = open_checkpoint(DFlashSpeculatorConfig, model, target, TYPE)
    layers = tuple(config.aux_hidden_state_layer_ids)
    check_layers(layers, features.num_layers, "aux_hidden_state_layer_ids", model, TYPE)
    shape = config.shape(model)
    size = shape.layer.get("hidden_size")
    if config.target_hidden_size not in (None, size):
        raise ModelError(
            f"drafter 'dflash': {model} has hidden states of size {size} for a target with "
            f"{config.target_hidden_size}. The format has no layer between the two; choose another checkpoint."
        )
    check_sizes(config, shape.layer.get("vocab_size"), size or 0, target, model, TYPE)
    if config.mask_token_id >= target.vocab_size:
        raise ModelError(
            f"drafter 'dflash': {model} has the mask_token_id {config.mask_token_id}; the target's token ids are "
            f"0 to {target.vocab_size - 1}. Choose a head for this target."
        )
    return head_of(lambda: DFlashHead(shape), checkpoint, config.draft_vocab_size, target, TYPE), layers
