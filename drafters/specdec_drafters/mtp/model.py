"""An MTP layer: a decoder layer that reads a hidden state and the embedding of the token after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specdec_drafters.common.state_head import FULL, StateHead

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
