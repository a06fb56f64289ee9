"""An EAGLE-3 head: a decoder layer over the target's hidden states and the embeddings of the tokens after them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specdec_core.interface import ModelError, TargetFeatures
from specdec_drafters.common.draft_heads import DraftVocabularyHead, StateHead, check_layers
from specdec_drafters.common.speculators import SpeculatorConfig

_LOG = logging.getLogger(__name__)

CARRIED = 0
"""The number of the head's output state among its hidden states."""


@dataclass(frozen=True)
class _Parts:
    """The modules of an architecture."""

    layer: Callable[..., Any]
    norm: Callable[..., Any]
    rotary: Callable[..., Any]


ARCHITECTURES = {
    "llama": _Parts(LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding),
    "qwen3": _Parts(Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding),
}
"""Architectures of a head's layers, by `model_type`."""


TYPES = TYPE, PARALLEL_TYPE = "eagle3", "peagle"
"""The `speculators_model_type` of heads that draft token by token, and of those that draft in one pass."""


class Eagle3SpeculatorConfig(SpeculatorConfig):
    """The keys of an `eagle3` or `peagle` config.

    Attributes:
        transformer_layer_config: `model_type`, `hidden_size` D, `vocab_size` V and so on.
        draft_vocab_size: Number of tokens that the head can draft.
        norm_before_residual: Whether the residual connection starts after the norm of the state.
        norm_before_fc: Whether the concatenated states are normalized.
        fc_norm: Whether each state is normalized.
        norm_output: Whether the state carried to the next token is the one after the final norm.
        target_hidden_size: Size of a hidden state of the target.
        eagle_aux_hidden_state_layer_ids: The target's layers that the head reads; three if they are not named.
        mask_token_id: The mask token of a head that drafts all tokens in one pass (P-EAGLE); None for one that
            drafts token by token.
    """

    draft_vocab_size: int = Field(default=32000, ge=1)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    target_hidden_size: int | None = Field(default=None, ge=1)
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    mask_token_id: int | None = None

    def layers(self, features: TargetFeatures, model: str) -> tuple[int, ...]:
        """Return the layers of the target that the head reads.

        Raises:
            ModelError: The target does not have them.
        """
        given, count = self.eagle_aux_hidden_state_layer_ids, features.num_layers
        if given is None and count is None:
            raise ModelError(
                f"drafter 'eagle3': {model} names no eagle_aux_hidden_state_layer_ids, and the target is not "
                "loaded, so that they cannot be chosen by the number of its layers. Add them to config.json."
            )
        chosen = tuple(given) if given is not None else default_layers(count or 0)
        if given is None:
            _LOG.warning("%s does not name the target's layers that it reads; taken are %s", model, list(chosen))
        check_layers(chosen, count, "eagle_aux_hidden_state_layer_ids", model, TYPE)
        return chosen

    @property
    def states(self) -> int:
        """Number of the target's layers that the head reads."""
        return len(self.eagle_aux_hidden_state_layer_ids or (0, 0, 0))

    @property
    def target_size(self) -> int:
        """Size of a hidden state of the target; 0 if it is not known."""
        return self.target_hidden_size or 0

    def checked(self, target_size: int, model: str) -> Self:
        """Return the config with what it lacks.

        Args:
            target_size: Size of a hidden state of the target, unless the config says it; 0 if it is not known.
            model: Name of the head.

        Raises:
            ModelError: Its layers are of an architecture that is not supported, or two flags exclude each other.
        """
        if self.norm_before_fc and self.fc_norm:
            raise ModelError(
                f"drafter 'eagle3': {model} sets norm_before_fc and fc_norm, which exclude each other."
            )
        return self.model_copy(
            update={
                "transformer_layer_config": self.layer(model, ARCHITECTURES),
                "target_hidden_size": self.target_hidden_size or target_size,
                "mask_token_id": self.mask_token(model),
            }
        )

    def mask_token(self, model: str) -> int | None:
        """Return the mask token of a head that drafts in one pass; None for other heads.

        Raises:
            ModelError: There is none, or it is not in the vocabulary.
        """
        if self.speculators_model_type != PARALLEL_TYPE:
            return None
        token, count = self.mask_token_id, self.transformer_layer_config.get("vocab_size") or 0
        if token is None or not 0 <= token < count:
            raise ModelError(
                f"drafter 'eagle3': {model} has the speculators_model_type 'peagle' and the mask_token_id "
                f"{token}, but the token ids 0 to {count - 1}. Correct mask_token_id in its config.json."
            )
        return token


def default_layers(count: int) -> tuple[int, ...]:
    """Return the layers that a head reads of a target with so many, where none are named."""
    return 2, count // 2, count - 3


class Eagle3Head(StateHead, DraftVocabularyHead):
    """An EAGLE-3 head.

    Parameters and buffers have the names that they have in a checkpoint.

    Args:
        shape: The sizes: its config, as `checked`.

    Attributes:
        mask_hidden: `[1, 1, states * target_size]`, read beside each mask token in place of the target's states;
            None without a mask token.

    References:
        Li et al. 2025, section 3 (arXiv 2503.01840); Hui et al. 2026 (P-EAGLE, arXiv 2602.01469). The modules and
        flags are those of speculators 0.9.
    """

    def __init__(self, shape: Eagle3SpeculatorConfig) -> None:
        super().__init__()
        self.shape = shape
        self.config = AutoConfig.for_model(**shape.transformer_layer_config)
        self.config._attn_implementation = "sdpa"
        parts = ARCHITECTURES[self.config.model_type]
        size, vocab, eps = self.config.hidden_size, self.config.vocab_size, self.config.rms_norm_eps
        read = shape.states * shape.target_size
        self.embed_tokens = nn.Embedding(vocab, size)
        self.input_norm = parts.norm(read, eps=eps) if shape.norm_before_fc else None
        norms = [parts.norm(shape.target_size, eps=eps) for _ in range(shape.states)]
        self.fc_norm = nn.ModuleList(norms) if shape.fc_norm else None
        self.fc = nn.Linear(read, size, bias=False)
        if shape.mask_token_id is not None:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, read))
        self.layers = nn.ModuleList(
            parts.layer(self.config, index) for index in range(self.config.num_hidden_layers)
        )
        self._widen(self.layers[0])
        self.layers[0].hidden_norm = parts.norm(size, eps=eps)
        self.norm = parts.norm(size, eps=eps)
        self.lm_head = nn.Linear(size, shape.draft_vocab_size, bias=False)
        self.rotary_emb = parts.rotary(self.config)
        self.add_draft_vocabulary(shape.draft_vocab_size, vocab)

    def _widen(self, layer: Any) -> None:
        """Have the first layer's attention read the embedding and the state, one after the other."""
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            wide = nn.Linear(2 * old.in_features, old.out_features, bias=old.bias is not None)
            setattr(layer.self_attn, name, wide)

    def combine(self, states: Tensor) -> Tensor:
        """See `StateHead.combine`; the target's are `[..., states * target_size]`."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        combined: Tensor = self.fc(states)
        return combined

    def run(
        self, embedded: Tensor, states: Tensor, masks: Mapping[str, Any], **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        """See `StateHead.run`."""
        for index, layer in enumerate(self.layers):
            mask = masks[self.kind(index)]
            if index == 0:
                states = self._first(layer, embedded, states, attention_mask=mask, **keywords)
            else:
                states = layer(states, attention_mask=mask, **keywords)
        normed = self.norm(states)
        return normed if self.shape.norm_output else states, normed

    def _first(self, layer: Any, embedded: Tensor, states: Tensor, **keywords: Any) -> Tensor:
        """Run the first layer, whose attention reads embeddings and states and whose residual are the states."""
        normed = layer.hidden_norm(states)
        both = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)
        attended, _ = layer.self_attn(hidden_states=both, **keywords)
        states = (normed if self.shape.norm_before_residual else states) + attended
        changed: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return changed
