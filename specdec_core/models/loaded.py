"""A loaded model and the support of its family: attention masks, ragged batches, maximum length."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from specdec_core.interface import TargetInfo
from specdec_core.interface.errors import ModelError
from specdec_core.models.features import ModelFeatures
from specdec_core.models.run.positions import position_patch

if TYPE_CHECKING:
    from specdec_core.models.fast.static import StaticPasses

FULL, SLIDING = "full_attention", "sliding_attention"
_NO_ATTENTION = {"mlp", "moe", "dummy"}
"""Types of layers that keep nothing of earlier tokens."""
_STATES = {"linear_attention", "conv"}
_RECURRENT = {*_STATES, "hybrid", "hybrid_sliding"}
"""Types of layers whose states transformers keeps in its cache."""
_POSITIONS = ("max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings")
_SOURCE_POSITIONS = ("max_encoder_position_embeddings", "max_source_positions", "max_position_embeddings")
"""Names of the limits of positions in the configs of transformers, of a decoder and of an encoder."""
MOST_UNCACHED = 16
"""Of a row of a recurrent model, before a draft: more are cached in a pass of their own."""
CACHES = ("past_key_values", "cache_params", "cache", "state")
"""Names of the argument of a forward that takes the cache. In transformers 5.24 the first two became `cache`."""
TESTED_ATTENTION = ("sdpa", "eager")
"""Implementations of attention that take a mask for each sequence."""


@dataclass(frozen=True)
class Family:
    """The features that a model's forward pass supports.

    Attributes:
        encoder_decoder: Whether it is an encoder-decoder model.
        layer_types: The kinds of its layers that keep something of earlier tokens, such as `full_attention`.
        window: Length of the sliding window in tokens, or None.
        ragged: Whether one forward pass can hold sequences at different positions; with recurrent layers, those
            that read equally many tokens. If not, each position takes a separate forward pass.
        trees: Whether one forward pass can hold a token tree, in which a token sees its ancestors only.
        trims_logits: Whether its forward accepts `logits_to_keep`.
        max_positions: Maximum number of tokens in a sequence, or None if unlimited.
        max_source: The same of the encoder's input.
        rotary_switch: Number of tokens up to which the rotary frequencies are those of short texts, for models
            that have others for longer ones (longrope); else None. A forward pass has one set for all its tokens.
        recurrent: Whether what it keeps of earlier tokens is rolled back by snapshots, as a state is.
        own_cache: Whether the model makes its cache, of a kind that has no slots; snapshots are of the whole.
        single_token_modules: Modules that read their state before a single token only, and so run token by token.
        takes_positions: Whether its forward takes the positions of tokens.
        cache_argument: The argument of its forward that takes the cache.
        float_mask: Whether attention takes additive float masks (eager attention) rather than boolean ones.
    """

    encoder_decoder: bool
    layer_types: frozenset[str]
    window: int | None
    ragged: bool
    trees: bool
    trims_logits: bool
    max_positions: int | None
    max_source: int | None
    rotary_switch: int | None
    recurrent: bool
    own_cache: bool
    single_token_modules: tuple[str, ...]
    takes_positions: bool
    cache_argument: str
    float_mask: bool

    @property
    def masks_own_cache(self) -> bool:
        """Whether its full attention needs our masks: of its cache, the first layer may know no length."""
        return self.own_cache and bool(self.layer_types & _RECURRENT) and self.layer_types - _RECURRENT == {FULL}


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, with the properties that decoding needs.

    Threads may share it: what a forward pass overrides in the model (positions per row) or reads in it (hidden
    states) belongs to the thread that runs the pass. Do not change its weights or mode while a thread decodes.

    Attributes:
        model: The Hugging Face model. Its weights and outputs are never changed.
        tokenizer: Its tokenizer, or None.
        name: The model as the user named it.
        family: What its forward pass supports.
        vocab_size: V, the number of logits.
        eos_ids: End-of-sequence token ids.
        start_id: The decoder's first token for encoder-decoder models, else None.
        features: Embeddings and hidden states for drafters, or None if it has no output embedding.
        lock: Held during a forward pass of a model that keeps in itself what changes between passes: its rotary
            frequencies, or the capacity of its experts.
        passes: Its captured forward passes, if it is compiled; else None.
        exact_shapes: The number of columns of a step's forward pass; None if it depends on the draft.
        bits: Of its weights, if `quantize` rounded them; else None.
    """

    model: Any
    tokenizer: Any
    name: str
    family: Family
    vocab_size: int
    eos_ids: tuple[int, ...]
    start_id: int | None
    features: ModelFeatures | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    passes: StaticPasses | None = field(default=None, repr=False, compare=False)
    exact_shapes: int | None = None
    bits: int | None = None

    @property
    def device(self) -> torch.device:
        """The device of its first weights, where inputs go."""
        device: torch.device = self.model.device
        if device.type != "meta":
            return device
        # The first weights are offloaded: they visit the first device of the map that computes.
        devices = getattr(self.model, "hf_device_map", {}).values()
        return torch.device(next((mapped for mapped in devices if mapped not in ("cpu", "disk")), "cpu"))

    @property
    def quantized(self) -> bool:
        """Whether its weights are quantized."""
        return self.bits is not None or getattr(self.model, "hf_quantizer", None) is not None

    @property
    def spread(self) -> bool:
        """Whether its weights are on several devices, or offloaded to a disk."""
        devices = set(getattr(self.model, "hf_device_map", {}).values())
        return len(devices) > 1 or "disk" in devices

    @property
    def most_uncached(self) -> int | None:
        """With recurrent layers, the most tokens of a row that wait for a draft to be read with; None without."""
        return MOST_UNCACHED if self.family.recurrent else None

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens in a sequence that begins short, or None if unlimited."""
        return self.family.rotary_switch or self.family.max_positions

    def max_length(self, prompt: int) -> int | None:
        """Return the maximum number of tokens in a sequence that begins with `prompt` tokens; None for no limit.

        A sequence does not cross the rotary switch: its cached keys would have the frequencies of short texts.
        """
        return self.family.max_positions if self.begins_long(prompt) else self.max_positions

    def begins_long(self, prompt: int) -> bool:
        """Return whether a sequence that begins with `prompt` tokens is past the rotary switch from the start."""
        return self.family.rotary_switch is not None and prompt > self.family.rotary_switch

    @property
    def encoder_decoder(self) -> bool:
        """Whether it is an encoder-decoder model."""
        return self.family.encoder_decoder

    @property
    def reads_ids(self) -> bool:
        """Whether what it reads, with an encoder, is token ids, rather than audio or images."""
        return bool(self.model.main_input_name == "input_ids")

    def check_plain(self, setting: str) -> None:
        """Reject weights whose layers cannot be copied or replaced.

        Args:
            setting: The setting that needs to, for the message.

        Raises:
            ModelError: The weights are quantized, or spread over devices.
        """
        if self.quantized or self.spread:
            state = "quantized" if self.quantized else "spread over devices"
            raise ModelError(
                f"{self.name}: its weights are {state}, which excludes `{setting}`; remove one of them."
            )

    def row_by_row(self) -> LoadedModel:
        """Return a copy that runs sequences at different positions in separate forward passes, and no trees."""
        return replace(self, family=replace(self.family, ragged=False, trees=False))

    def with_own_cache(self) -> LoadedModel:
        """Return a copy that runs each row with a cache that the model makes."""
        family = replace(self.family, ragged=False, trees=False, recurrent=True, own_cache=True)
        return replace(self, family=family)

    def without_trees(self) -> LoadedModel:
        """Return a copy that takes no token trees."""
        return replace(self, family=replace(self.family, trees=False))

    def info(self, folder: Path = Path()) -> TargetInfo:
        """Return the properties of this model, as a target, that drafters see.

        Args:
            folder: Base for relative paths in plugin settings.
        """
        return TargetInfo(
            vocab_size=self.vocab_size,
            eos_ids=self.eos_ids,
            device=self.device,
            tokenizer=self.tokenizer,
            encoder_decoder=self.encoder_decoder,
            folder=folder,
            features=self.features,
            model=self,
        )


def inspect_family(model: Any) -> Family:
    """Return the features of a model's forward pass.

    Args:
        model: A Hugging Face model with a language-model head.

    Raises:
        ModelError: Tokens attend to later ones, or experts drop tokens of a pass.
    """
    config = model.config.get_text_config(decoder=True)
    encoder_decoder = bool(model.config.is_encoder_decoder)
    window = getattr(config, "sliding_window", None)
    layer_types = _layer_types(config, window)
    recurrent, own_cache = _states_of(model, config, layer_types)
    _reject_dependence(model, config)
    parameters = inspect.signature(model.forward).parameters
    attention = attention_of(model)
    takes_positions = position_patch(model) is not None if encoder_decoder else "position_ids" in parameters
    # Ragged batches need masks, which flash attention does not take, and positions per sequence; so do trees.
    # Layers that attend to nothing need neither.
    ragged = not own_cache and ((takes_positions and attention in TESTED_ATTENTION) or layer_types <= _STATES)
    return Family(
        encoder_decoder=encoder_decoder,
        layer_types=layer_types,
        window=window if SLIDING in layer_types else None,
        ragged=ragged,
        trees=ragged and not recurrent,
        trims_logits="logits_to_keep" in parameters,
        max_positions=_max_positions(config),
        max_source=_max_positions(config, source=True) if encoder_decoder else None,
        rotary_switch=_rotary_switch(config),
        recurrent=recurrent,
        own_cache=own_cache,
        single_token_modules=(),
        takes_positions=takes_positions,
        cache_argument=next((name for name in CACHES if name in parameters), "past_key_values"),
        float_mask=attention == "eager",
    )


def vocab_size_of(head: Any, config: Any) -> int:
    """Return V of an output embedding, or of a config where there is none."""
    if head is None:
        return int(config.vocab_size)
    # Quantized weights may have another shape than the layer.
    return int(getattr(head, "out_features", None) or head.weight.shape[0])


def attention_of(model: Any) -> str:
    """Return the attention implementation that a model uses, such as `sdpa`."""
    config = model.config.get_text_config(decoder=True)
    return str(getattr(config, "_attn_implementation", None) or "eager")


def _layer_types(config: Any, window: int | None) -> frozenset[str]:
    types = getattr(config, "layer_types", None)
    if types:
        return frozenset(types) - _NO_ATTENTION
    return frozenset({SLIDING if window is not None else FULL})


def _states_of(model: Any, config: Any, layer_types: frozenset[str]) -> tuple[bool, bool]:
    """Return whether earlier tokens are in states, and whether in a cache that only the model can make."""
    # Families of hybrid models have members whose layers are all attention.
    stateful = not getattr(config, "layer_types", None) and bool(getattr(model, "_is_stateful", False))
    other = layer_types - {FULL, SLIDING} - _RECURRENT
    if not other and not stateful and hasattr(config, "num_attention_heads"):
        return bool(layer_types & _RECURRENT), False
    return True, bool(other) or not _keeps_states(config)


def _keeps_states(config: Any) -> bool:
    try:
        layers = DynamicCache(config=config).layers
    except Exception:  # code of any family
        return False
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def _reject_dependence(model: Any, config: Any) -> None:
    # With room for all tokens of a pass, none is dropped.
    everything = getattr(config, "moe_eval_capacity_token_fraction", 0) >= 1
    if (capacity := getattr(config, "expert_capacity", None)) and not everything:
        raise ModelError(
            f"{type(model).__name__} (model_type {config.model_type!r}): an expert takes {capacity} tokens of a "
            "forward pass at most and drops the others, so that a draft changes the logits of other tokens."
        )
    # "vision": the tokens of an image attend to each other.
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise ModelError(
            f"{type(model).__name__} (model_type {config.model_type!r}) has use_bidirectional_attention, so that "
            "tokens attend to later ones and a draft changes the logits before it. Models that embed texts, or "
            "read a prompt as a whole, are of this kind; use one whose attention is causal."
        )


def length_limit(config: Any) -> int | None:
    """Return the most tokens of a sequence that begins short, by the config of its decoder; None for no limit."""
    return _rotary_switch(config) or _max_positions(config)


def _max_positions(config: Any, *, source: bool = False) -> int | None:
    # Relative position biases (T5) reach any length: n_positions is the training length, not a limit.
    if hasattr(config, "relative_attention_num_buckets"):
        return None
    limits = (getattr(config, name, None) for name in (_SOURCE_POSITIONS if source else _POSITIONS))
    return next((int(limit) for limit in limits if limit is not None), None)


def _rotary_switch(config: Any) -> int | None:
    settings = getattr(config, "rope_parameters", None) or {}
    # Some families have settings for each type of layer.
    each = [settings, *(value for value in settings.values() if isinstance(value, Mapping))]
    lengths = [one["original_max_position_embeddings"] for one in each if one.get("rope_type") == "longrope"]
    return min(map(int, lengths), default=None)
