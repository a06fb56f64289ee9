"""Draft heads that read a hidden state beside each token, as models of transformers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from specdec_drafters.common.draft_heads import DraftHead

FULL, SLIDING = "full_attention", "sliding_attention"
_MASKS = {FULL: create_causal_mask, SLIDING: create_sliding_window_causal_mask}


@dataclass(frozen=True)
class HeadOutput:
    """The result of a forward pass, as models of transformers do.

    Attributes:
        logits: `[B, K, V]`, minus infinity for tokens that the head does not draft.
        hidden_states: One tensor, `[B, T, D]`: the state of each token, which the next drafted token reads.
    """

    logits: Tensor
    hidden_states: tuple[Tensor]


class StateHead(DraftHead):
    """A head whose entry of token x_(t + 1) reads its embedding and a state of token x_t, and predicts x_(t + 2).

    The state is `combine` of the target's, where the target has read x_t, else the head's own output for x_t.

    Attributes:
        config: The config of its layers, in the form of transformers.
        mask_hidden: The target's states that are read beside a mask token, for a head that drafts in one pass.
    """

    config: Any
    embed_tokens: nn.Embedding
    rotary_emb: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.mask_hidden: nn.Parameter | None = None

    @abstractmethod
    def combine(self, states: Tensor) -> Tensor:
        """Return the state that the head reads, `[..., D]`, from the target's, those of all layers in turn."""

    @abstractmethod
    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """Run the layers.

        Args:
            embedded: `[B, T, D]`, the embeddings.
            states: `[B, T, D]`, beside them.
            masks: The attention mask of each kind of attention.
            keywords: Further arguments of a layer: positions, rotary embeddings and cache.

        Returns:
            What `read` does.
        """

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
            attention_mask: `[B, 1, T, S]`, one for all layers or one for each kind of attention; causal if None.
            position_ids: `[B, T]` int64; those after the cached tokens if None.
            logits_to_keep: Number of last tokens whose logits are needed; 0 for all.
        """
        carried, normed = self.read(input_ids, states, past_key_values, attention_mask, position_ids)
        logits = self.lm_head(normed[:, -logits_to_keep:])
        return HeadOutput(self.over_vocabulary(logits), (carried,))

    def read(
        self,
        input_ids: Tensor,
        states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | Mapping[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the state that the next drafted token reads, and the input of `lm_head`, `[B, T, D]` both."""
        embedded = self.embed_tokens(input_ids)
        if position_ids is None:
            begin = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = begin + torch.arange(embedded.shape[1], device=embedded.device)[None]
        return self.run(
            embedded,
            states,
            self._masks(embedded, attention_mask, past_key_values, position_ids),
            position_embeddings=self.rotary_emb(embedded, position_ids),
            position_ids=position_ids,
            past_key_values=past_key_values,
        )

    def kind(self, index: int) -> str:
        """Return the kind of attention of a layer."""
        kinds = getattr(self.config, "layer_types", None)
        return kinds[index] if kinds else FULL

    def _masks(self, embedded: Tensor, mask: Any, cache: Any, position_ids: Tensor) -> Mapping[str, Any]:
        if isinstance(mask, Mapping):
            return mask
        kinds = {self.kind(index) for index in range(self.config.num_hidden_layers)}
        if mask is not None:
            return dict.fromkeys(kinds, mask)
        given = {"inputs_embeds": embedded, "past_key_values": cache, "position_ids": position_ids}
        return {kind: _MASKS[kind](config=self.config, attention_mask=None, **given) for kind in kinds}
