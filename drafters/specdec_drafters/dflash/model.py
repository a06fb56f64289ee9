"""A DFlash head: a few decoder layers that fill in a block of masked tokens, given the target's hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from specdec_core.models import inspect_family
from specdec_drafters.common.draft_heads import DraftVocabularyHead

ARCHITECTURES = ("llama", "qwen3")
"""Configs of a head's layers, by `model_type`. The layers are those of Qwen3 with either."""
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, each `[..., head_dim]`."""
KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a head.

    Attributes:
        layer: Keys of `transformer_layer_config`: `model_type`, `hidden_size` D, `vocab_size` V and so on. The
            target's hidden states are of the size D too.
        draft_vocab_size: Number of tokens that it can draft.
        states: Number of the target's layers that it reads.
        block_size: Number of positions of a block. The first holds the last committed token, the others the mask.
        mask_token_id: The token that stands for one that is to be drafted.
        sample_from_anchor: Whether each position predicts the token after it, the first one included. If not, each
            masked position predicts its own token, and the first predicts nothing.
        sliding_window_non_causal: Whether a position attends to later ones in layers with a sliding window, too.
    """

    layer: Mapping[str, Any]
    draft_vocab_size: int
    states: int
    block_size: int = 8
    mask_token_id: int = 0
    sample_from_anchor: bool = False
    sliding_window_non_causal: bool = False

    @property
    def drafted(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


class _Attention(nn.Module):
    """Attention of a block to the target's states and to itself, with the same projections for both."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, self.head_dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        bias = config.attention_bias
        self.q_proj = nn.Linear(size, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(size, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(size, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, size, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, states: Tensor, rotary: Rotary) -> KeysValues:
        """Return keys and values, each `[..., H, head_dim]`, of states `[..., D]`."""
        keys = self.k_norm(self.k_proj(states).unflatten(-1, (-1, self.head_dim)))
        return _rotated(keys, rotary), self.v_proj(states).unflatten(-1, (-1, self.head_dim))

    def forward(self, block: Tensor, context: KeysValues, mask: Tensor, rotary: Rotary) -> Tensor:
        """Attend to `context`, each `[B, H, S, head_dim]`, and to the block `[B, N, D]` itself."""
        queries = self.q_norm(self.q_proj(block).unflatten(-1, (-1, self.head_dim)))
        own = self.keys_values(block, rotary)
        keys, values = (torch.cat([c, o.transpose(1, 2)], 2) for c, o in zip(context, own, strict=True))
        attended = scaled_dot_product_attention(
            _rotated(queries, rotary).transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True
        )
        mixed: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return mixed


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, block: Tensor, context: KeysValues, mask: Tensor, rotary: Rotary) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), context, mask, rotary)
        changed: Tensor = block + self.mlp(self.post_attention_layernorm(block))
        return changed


class DFlashHead(DraftVocabularyHead):
    """A DFlash head: fills in all masked tokens of a block in one forward pass.

    Each layer attends to the block and to the target's states of the committed tokens, which no layer changes. So
    the keys and values of a committed token are computed once, for all layers together.

    Parameters and buffers have the names that they have in a checkpoint.

    Args:
        shape: The sizes.

    Attributes:
        positions: Number of positions, or None if unlimited. What a block has beyond them shares the last.

    References:
        Chen et al. 2026 (arXiv 2602.06036); the modules and flags are those of speculators 0.9.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.config = config = AutoConfig.for_model(**shape.layer)
        size, vocab = config.hidden_size, config.vocab_size
        self.embed_tokens = nn.Embedding(vocab, size)
        self.fc = nn.Linear(shape.states * size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, shape.draft_vocab_size, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.windows = [self._window(index) for index in range(config.num_hidden_layers)]
        self.add_draft_vocabulary(shape.draft_vocab_size, vocab)
        family = inspect_family(self)
        self.positions = family.rotary_switch or family.max_positions

    def context(self, states: Tensor, positions: Tensor) -> list[KeysValues]:
        """Return the layers' cache of committed tokens.

        Args:
            states: `[N, states * D]`, the target's.
            positions: `[N]` int64.

        Returns:
            Keys and values of each layer, each `[N, H, head_dim]`.
        """
        combined = self.hidden_norm(self.fc(states))
        cosines, sines = self.rotary_emb(combined, positions[None])
        attentions: list[Any] = [layer.self_attn for layer in self.layers]
        return [attention.keys_values(combined, (cosines[0], sines[0])) for attention in attentions]

    def forward(self, anchors: Tensor, lengths: Tensor, context: Sequence[KeysValues]) -> Tensor:
        """Fill in one block a row.

        Args:
            anchors: `[B]` int64, the last committed token.
            lengths: `[B]` int64, the number of committed tokens before it, which is its position.
            context: Keys and values of these tokens in each layer, each `[B, H, S, head_dim]`; the slots of a row
                from its length on are not read.

        Returns:
            Logits `[B, drafted, V]` of the next tokens, minus infinity outside the draft vocabulary.
        """
        shape = self.shape
        tokens = anchors.new_full((len(anchors), shape.block_size), shape.mask_token_id)
        tokens[:, 0] = anchors
        block = self.embed_tokens(tokens)
        positions = lengths[:, None] + torch.arange(shape.block_size, device=lengths.device)
        if self.positions is not None:
            positions = positions.clamp(max=self.positions - 1)
        rotary = self.rotary_emb(block, positions)
        slots = context[0][0].shape[2]
        masks = {window: self._mask(lengths, slots, window) for window in set(self.windows)}
        for layer, kept, window in zip(self.layers, context, self.windows, strict=True):
            block = layer(block, kept, masks[window], rotary)
        logits: Tensor = self.lm_head(self.norm(block[:, shape.block_size - shape.drafted :]))
        return self.over_vocabulary(logits)

    def _window(self, index: int) -> int | None:
        """Return the number of tokens before the block that a layer attends to; None for all."""
        kinds = getattr(self.config, "layer_types", None)
        return self.config.sliding_window if kinds and kinds[index] == "sliding_attention" else None

    def _mask(self, lengths: Tensor, slots: int, window: int | None) -> Tensor:
        """Return the mask of the block's attention, `[B, 1, block_size, slots + block_size]` bool.

        The window is counted from the first position of the block, for all its positions.
        """
        slot, size = torch.arange(slots, device=lengths.device), self.shape.block_size
        seen = slot < lengths[:, None]
        own = torch.ones(size, size, dtype=torch.bool, device=lengths.device)
        if window is not None:
            seen = seen & (slot >= lengths[:, None] - window)
            if not self.shape.sliding_window_non_causal:
                own = own.tril()
        before, within = seen[:, None].expand(-1, size, -1), own.expand(len(lengths), -1, -1)
        return torch.cat([before, within], dim=-1)[:, None]


def _rotated(states: Tensor, rotary: Rotary) -> Tensor:
    """Rotate queries or keys `[..., H, head_dim]` by their positions."""
    cosines, sines = (each.unsqueeze(-2) for each in rotary)
    rotated: Tensor = states * cosines + rotate_half(states) * sines
    return rotated
