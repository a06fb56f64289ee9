"""An MTP layer: a decoder layer that reads a hidden state and the embedding of the token after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.masking_utils import create_causal_mask
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specdec_drafters.eagle3.model import HeadOutput

ARCHITECTURES = ("qwen3",)
"""Architectures of the layer, by `model_type`."""
NORMS = ("hidden_layernorm", "token_layernorm", "final_layernorm")
"""The norms of the state that is read, of the embedding, and of the layer's output."""


class MtpHead(nn.Module):
    """An MTP layer with the target's embeddings, as a model of transformers that takes a state beside each token.

    The entry of token x_(t + 1) reads its embedding and a state of token x_t: the target's, where it has read x_t,
    else the layer's own output for x_t. It predicts x_(t + 2).

    Parameters have the names that they have in a checkpoint. The embeddings are on the meta device until they are
    loaded, since they are the target's own.

    Args:
        layer: Keys of the layer's config: `hidden_size` D, `vocab_size` V and so on. It has full attention.

    References:
        Gloeckle et al. 2024 (arXiv 2404.19737); DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025,
        one layer for all places (arXiv 2509.18362). The modules are those of speculators 0.9.
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

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the weights."""
        return self.lm_head.weight.dtype

    def combine(self, states: Tensor) -> Tensor:
        """Return the state that the layer reads, `[..., D]`: the target's as it is."""
        return states

    def forward(
        self,
        input_ids: Tensor,
        states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | Mapping[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> HeadOutput:
        """Read tokens, each with a state.

        Args:
            input_ids: `[B, T]` int64.
            states: `[B, T, D]`, of the token before each.
            past_key_values: The cache.
            attention_mask: `[B, 1, T, S]`, or a mapping with that of full attention; causal if None.
            position_ids: `[B, T]` int64; those after the cached tokens if None.
            logits_to_keep: Number of last tokens whose logits are needed; 0 for all.
        """
        block: Any = self.mtp_layers[0]
        embedded = self.embed_tokens(input_ids)
        if position_ids is None:
            begin = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = begin + torch.arange(embedded.shape[1], device=embedded.device)[None]
        if isinstance(attention_mask, Mapping):
            attention_mask = attention_mask["full_attention"]
        elif attention_mask is None:
            attention_mask = create_causal_mask(
                config=self.config,
                inputs_embeds=embedded,
                attention_mask=None,
                past_key_values=past_key_values,
                position_ids=position_ids,
            )
        both = torch.cat([block.token_layernorm(embedded), block.hidden_layernorm(states)], dim=-1)
        output = block(
            block.input_proj(both),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            position_embeddings=self.rotary_emb(embedded, position_ids),
        )
        state = block.final_layernorm(output)
        return HeadOutput(self.lm_head(state[:, -logits_to_keep:]), (state,))
