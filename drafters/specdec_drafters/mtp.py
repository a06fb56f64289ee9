"""The mtp drafter: a decoder layer that reads the target's last hidden states and drafts token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specdec_core.interface import ModelError, TargetInfo
from specdec_drafters.common.draft_heads import (
    FULL,
    StateHead,
    check_sizes,
    check_weights,
    on_target_device,
    target_features,
)
from specdec_drafters.common.speculators import SpeculatorConfig, open_checkpoint
from specdec_drafters.eagle3.drafter import Eagle3Drafter

ARCHITECTURES = ("qwen3",)
"""Architectures of the layer, by `model_type`."""
NORMS = ("hidden_layernorm", "token_layernorm", "final_layernorm")
"""The norms of the state that is read, of the embedding, and of the layer's output."""


class MtpHead(StateHead):
    """An MTP layer with the target's embeddings.

    Parameters have the names that they have in a checkpoint. The embeddings are on the meta device until they are
    loaded, since they are the target's own.

    Args:
        layer: Keys of the layer's config: `hidden_size` D, `vocab_size` V and so on. It has full attention.

    References:
        Gloeckle et al. 2024 (arXiv 2404.19737); DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025,
        one layer for all depths (arXiv 2509.18362). The modules are those of speculators 0.9.
    """

    def __init__(self, layer: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = AutoConfig.for_model(**layer)
        self.config._attn_implementation = "sdpa"
        size, vocab = self.config.hidden_size, self.config.vocab_size
        block: Any = Qwen3DecoderLayer(self.config, 0)
        for name in NORMS:
            setattr(block, name, Qwen3RMSNorm(size, eps=self.config.rms_norm_eps))
        block.input_proj = nn.Linear(2 * size, size, bias=False)
        self.mtp_layers = nn.ModuleList([block])
        self.embed_tokens = nn.Embedding(vocab, size, device="meta")
        self.lm_head = nn.Linear(size, vocab, bias=False, device="meta")
        self.rotary_emb = Qwen3RotaryEmbedding(self.config)

    def combine(self, states: Tensor) -> Tensor:
        """See `StateHead.combine`: the target's as it is."""
        return states

    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """See `StateHead.run`."""
        block: Any = self.mtp_layers[0]
        both = torch.cat([block.token_layernorm(embedded), block.hidden_layernorm(states)], dim=-1)
        output = block(block.input_proj(both), attention_mask=masks[FULL], **keywords)
        state = block.final_layernorm(output)
        return state, state


TYPE = "mtp"
"""The `speculators_model_type`."""
_HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Architectures that the package also takes."""
_OF_TARGET = ("embed_tokens.weight", "lm_head.weight")
"""Weights that are the target's. The package does not save them, and ignores those of a checkpoint."""
_UNUSED = (*_OF_TARGET, "verifier_lm_head.weight", "d2t", "t2d")
"""Weights that some checkpoints hold and that drafting does not need."""


class MtpSpeculatorConfig(SpeculatorConfig):
    """The keys of an `mtp` config, whose `transformer_layer_config` is that of the target it was trained for."""

    num_nextn_predict_layers: int = Field(default=1, ge=1, le=1)

    def attending_layer(self, model: str) -> Mapping[str, Any]:
        """Return the config of the layer, which has full attention whatever the layers of the target have.

        Raises:
            ModelError: It is of an architecture that is not supported.
        """
        if (kind := self.transformer_layer_config.get("model_type")) in _HYBRID:
            raise ModelError(
                f"drafter 'mtp': {model} has a layer of the model_type {kind!r}, of which only those of "
                f"{', '.join(ARCHITECTURES)} are built. Draft with another drafter."
            )
        attention = {"layer_types": ["full_attention"], "use_sliding_window": False, "sliding_window": None}
        # The package's default is one that it cannot build.
        layer = self.layer(model, ARCHITECTURES, default="qwen2")
        return {**layer, **attention, "num_hidden_layers": 1}

    def last_layer(self, count: int | None, model: str) -> int:
        """Return the layer of the target that is read: its last.

        Args:
            count: Number of the target's layers; None if it is not loaded.
            model: Name of the checkpoint, for error messages.

        Raises:
            ModelError: It was trained for a target with another number of layers.
        """
        theirs: int = AutoConfig.for_model(
            **self.transformer_layer_config | {"layer_types": None}
        ).num_hidden_layers
        if count not in (None, theirs):
            raise ModelError(
                f"drafter 'mtp': {model} reads the output of layer {theirs}, the last of its target; this target "
                f"has {count} layers. It was trained for {self.verifier or 'another target'}."
            )
        return theirs


def read_mtp(model: str, target: TargetInfo) -> tuple[MtpHead, tuple[int, ...]]:
    """Read an MTP layer for a target.

    Args:
        model: A folder or a hub name.
        target: The target, whose embeddings the layer shares.

    Returns:
        The layer on the device of the target's output embedding and in its data type; and the layer of the target
        that it reads, the last.

    Raises:
        ModelError: It is not there, is not complete, is of another type, or does not fit the target.
    """
    features = target_features(target, TYPE)
    checkpoint, config = open_checkpoint(MtpSpeculatorConfig, model, target, TYPE)
    layer = config.attending_layer(model)
    vocab = target.vocab_size
    embedding = features.input_embeddings[:vocab]
    if embedding.shape != (vocab, features.hidden_size):
        raise ModelError(
            f"drafter 'mtp': this target embeds {embedding.shape[0]} tokens in {embedding.shape[1]} numbers, but "
            f"its hidden states are {features.hidden_size} and its logits {vocab}; an MTP layer reads both alike. "
            "Choose another drafter."
        )
    with torch.random.fork_rng(devices=[]):  # initial values are drawn from the global generator
        head = MtpHead(layer)
    check_sizes(config, head.config.vocab_size, head.config.hidden_size, target, model, TYPE)
    own = {name: weight for name, weight in head.state_dict().items() if name not in _OF_TARGET}
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in _UNUSED}
    check_weights(tensors, own, (), model, TYPE)
    shared = dict(zip(_OF_TARGET, (embedding, features.output_embeddings[:vocab]), strict=True))
    # Assigned, not copied: the target's embeddings are in memory once.
    head.load_state_dict({**tensors, **shared}, assign=True)
    layers = (config.last_layer(features.num_layers, model),)
    return on_target_device(head, features), layers


class MtpDrafter(Eagle3Drafter):
    """Drafts with an MTP layer, in the format of the speculators package.

    The layer has entries, and a cache of them, as an EAGLE-3 head does. Each reads one state: that of the target's
    last layer before its final norm, and for drafted tokens its own output of the token before.

    q is the layer's distribution over the target's vocabulary, after the run's draft sampling settings.

    References:
        DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025 (arXiv 2509.18362).
    """

    def read(self, model: str, target: TargetInfo) -> tuple[MtpHead, tuple[int, ...]]:
        """Read a checkpoint; return the layer, and the layer of the target that it reads."""
        return read_mtp(model, target)
