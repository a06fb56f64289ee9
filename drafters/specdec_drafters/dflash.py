"""The dflash drafter: a head that reads the target's hidden states and drafts a block in one forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from specdec_core.interface import (
    ConfigError,
    Drafter,
    DraftRequest,
    DraftSession,
    ModelError,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.models import inspect_family, moved, uploaded
from specdec_drafters.common.context import ContextSession, KeysValues
from specdec_drafters.common.draft_heads import (
    FULL,
    SLIDING,
    DraftVocabularyHead,
    check_layers,
    check_sizes,
    head_of,
    write_for_vllm,
)
from specdec_drafters.common.parallel_draft import draw_at_each_depth
from specdec_drafters.common.speculators import Checkpoint, SpeculatorConfig, open_checkpoint
from specdec_drafters.common.weights_file import target_features
from specdec_drafters.settings import DFlashConfig

ARCHITECTURES = ("llama", "qwen3")
"""Configs of a head's layers, by `model_type`. The layers are those of Qwen3 with either."""
Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, each `[..., head_dim]`."""


class DFlashSpeculatorConfig(SpeculatorConfig):
    """The keys of a `dflash` config.

    Attributes:
        transformer_layer_config: `model_type`, `hidden_size` D, `vocab_size` V and so on. The target's hidden
            states are of the size D too.
        draft_vocab_size: Number of tokens that the head can draft.
        block_size: Number of positions of a block. The first holds the last committed token, the others the mask.
        target_hidden_size: D, if it is given.
        aux_hidden_state_layer_ids: The target's layers that the head reads.
        mask_token_id: The token that stands for one that is to be drafted.
        sample_from_anchor: Whether each position predicts the token after it, the first one included. If not, each
            masked position predicts its own token, and the first predicts nothing.
        sliding_window_non_causal: Whether a position attends to later ones in layers with a sliding window, too.
    """

    draft_vocab_size: int = Field(default=32000, ge=1)
    block_size: int = Field(default=8, ge=1)
    target_hidden_size: int | None = Field(default=None, ge=1)
    aux_hidden_state_layer_ids: list[int]
    mask_token_id: int = Field(ge=0)
    sliding_window_non_causal: bool = False
    sample_from_anchor: bool = False

    @property
    def drafted(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


class _Attention(Qwen3Attention):  # type: ignore[misc]  # transformers is not typed
    """Attention of a block to the target's states and to itself, with the same projections for both."""

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


class _Layer(Qwen3DecoderLayer):  # type: ignore[misc]
    def __init__(self, config: Any, index: int) -> None:
        super().__init__(config, index)
        self.self_attn = _Attention(config, index)

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
        shape: The sizes: its config, whose layers have a `model_type`.

    Attributes:
        positions: Number of positions, or None if unlimited. What a block has beyond them shares the last.

    References:
        Chen et al. 2026 (arXiv 2602.06036); the modules and flags are those of speculators 0.9.
    """

    def __init__(self, shape: DFlashSpeculatorConfig) -> None:
        super().__init__()
        self.shape = shape
        self.config = config = AutoConfig.for_model(**shape.transformer_layer_config)
        size, vocab = config.hidden_size, config.vocab_size
        self.embed_tokens = nn.Embedding(vocab, size)
        self.fc = nn.Linear(len(shape.aux_hidden_state_layer_ids) * size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, shape.draft_vocab_size, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
        # The number of tokens before the block that each layer attends to; None for all.
        self.windows = [config.sliding_window if kind == SLIDING else None for kind in kinds]
        self.add_draft_vocabulary(shape.draft_vocab_size, vocab)
        family = inspect_family(self)
        self.positions = family.rotary_switch or family.max_positions

    def context(self, states: Sequence[Tensor], positions: Tensor) -> list[KeysValues]:
        """Return the layers' cache of committed tokens.

        Args:
            states: The target's of each layer that is read, `[N, D]`, on any device.
            positions: `[N]` int64.

        Returns:
            Keys and values of each layer, each `[N, H, head_dim]`.
        """
        layers = torch.cat([*states], dim=-1).to(self.device, self.dtype)
        combined = self.hidden_norm(self.fc(layers))
        cosines, sines = self.rotary_emb(combined, moved(positions, self.device)[None])
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


TYPE = "dflash"
"""The `speculators_model_type`."""


def _open(model: str, target: TargetInfo | None) -> tuple[Checkpoint, DFlashSpeculatorConfig]:
    checkpoint, config = open_checkpoint(DFlashSpeculatorConfig, model, target, TYPE)
    if config.drafted < 1:
        raise ModelError(
            f"drafter 'dflash': {model} has a block_size of {config.block_size}, of which the first position "
            "holds the last token, so that it drafts nothing. Choose a head with a larger block_size."
        )
    return checkpoint, config.model_copy(update={"transformer_layer_config": config.layer(model, ARCHITECTURES)})


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
    checkpoint, config = _open(model, target)
    layers = tuple(config.aux_hidden_state_layer_ids)
    check_layers(layers, features.num_layers, "aux_hidden_state_layer_ids", model, TYPE)
    layer = config.transformer_layer_config
    size = layer.get("hidden_size")
    if config.target_hidden_size not in (None, size):
        raise ModelError(
            f"drafter 'dflash': {model} has hidden states of size {size} for a target with "
            f"{config.target_hidden_size}. The format has no layer between the two; choose another checkpoint."
        )
    check_sizes(config, layer.get("vocab_size"), size or 0, target, model, TYPE)
    if config.mask_token_id >= target.vocab_size:
        raise ModelError(
            f"drafter 'dflash': {model} has the mask_token_id {config.mask_token_id}; the target's token ids are "
            f"0 to {target.vocab_size - 1}. Choose a head for this target."
        )
    return head_of(lambda: DFlashHead(config), checkpoint, config.draft_vocab_size, target, TYPE), layers


def export_dflash(model: str, folder: Path) -> dict[str, Any]:
    """Write a head into a folder that vLLM loads; return keys of the speculative config.

    vLLM reads as many masks as it drafts tokens, and this drafter always those of a whole block. The drafts are
    equal if a draft is a block.

    Args:
        model: A folder or a hub name; relative to the current folder.
        folder: An empty folder.

    Raises:
        ConfigError: vLLM cannot complete the head.
        ModelError: It is not there, not complete, or not of this format.
    """
    checkpoint, config = _open(model, None)
    flags = {"draft_vocab_size", "block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal"}
    keys = config.model_dump(include=flags | {"transformer_layer_config"})
    kinds = set(getattr(AutoConfig.for_model(**config.transformer_layer_config), "layer_types", None) or ())
    if "sliding_attention" not in kinds:
        keys["sliding_window_non_causal"] = True  # vLLM reads it of every layer
    elif len(kinds) > 1 and not config.sliding_window_non_causal:
        raise ConfigError(
            f"drafter 'dflash': in {model}, a position attends to later ones in some layers, and in those with a "
            "sliding window not. vLLM knows one rule for all layers; choose another checkpoint."
        )
    write_for_vllm(folder, checkpoint, config, keys, lambda: DFlashHead(config))
    return {"num_speculative_tokens": config.drafted}


class DFlashDrafter(Drafter):
    """Drafts with a DFlash head, in the format of the speculators package.

    After x_1 ... x_n the target has read all tokens but x_n. The head reads the target's hidden states of those
    tokens, from the layers that the checkpoint names, and a block of x_n and masks. It predicts all masked tokens
    in one forward pass. It always reads a whole block, as in training, so that a draft does not depend on gamma.

    q of a token is the head's distribution at its position, over its draft vocabulary, at the target's token ids,
    after the run's draft sampling settings. It does not depend on the other tokens of the draft. In a tree, all
    nodes at a depth are drawn at one position.

    References:
        Chen et al. 2026 (arXiv 2602.06036).
    """

    drafts_trees = True

    def __init__(self, config: DFlashConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.head, self.hidden_layers = read_dflash(config.model, target)
        positions, shape = self.head.positions, self.head.shape
        # The last token that a block drafts is at the position that predicts it, or after it.
        self.max_length = None if positions is None else positions + shape.drafted - shape.block_size + 1

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _DFlashSession(self, session)


class _DFlashSession(ContextSession):
    """One batch."""

    def __init__(self, drafter: DFlashDrafter, session: SessionInfo) -> None:
        slots = min(session.capacity, drafter.max_length or session.capacity)
        self._head: DFlashHead = drafter.head
        like = self._head.fc.weight
        super().__init__(self._head.context, drafter.hidden_layers, session.batch_size, slots, like)

    @torch.inference_mode()
    def propose(self, request: DraftRequest) -> Proposal:
        if not request.wants_more():
            return request.proposal()
        context = self._read(request)
        last = [row[-1] for row in request.tokens]
        anchors, lengths = uploaded([last, self._kept], self._head.device)
        # Of rows without a draft, any logits.
        return draw_at_each_depth(request, self._head(anchors, lengths, context))
