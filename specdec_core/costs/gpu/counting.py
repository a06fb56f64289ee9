"""The work of a model's forward pass: operators, bytes and FLOPs, counted on tensors without values."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

_READS_ROWS = {"embedding", "index", "index_select", "gather"}
"""Operators that read only what they return."""


_NOT_RUN = {"empty", "empty_like", "new_empty", "detach", "lift_fresh", "_unsafe_view", "alias"}
"""Operators without a kernel."""


@dataclass(frozen=True)
class Operator:
    """An operator that a device runs as a kernel.

    Attributes:
        name: Its name in PyTorch.
        weights: Bytes of the model's weights that it reads.
        bytes: All bytes that it reads and writes, weights included.
        unique: Those bytes, if the heads of a query group share the keys and values that they read instead of
            having a copy each.
        flops: Arithmetic operations of matrix products and attention; 0 for others.
    """

    name: str
    weights: int
    bytes: int
    unique: int
    flops: int


@dataclass(frozen=True)
class PassWork:
    """The work of one forward pass.

    Attributes:
        operators: What a device runs, and how often each.
        layers: Number of layers of the decoder.
    """

    operators: Mapping[Operator, int]
    layers: int

    @property
    def launches(self) -> int:
        """Number of operators."""
        return sum(self.operators.values())

    @property
    def bytes(self) -> int:
        """All bytes that are read and written."""
        return sum(one.bytes * count for one, count in self.operators.items())

    @property
    def flops(self) -> int:
        """Arithmetic operations of matrix products and attention."""
        return sum(one.flops * count for one, count in self.operators.items())


class ModelWork:
    """Counts the work of a model's forward passes; nothing is computed, and no weights are loaded.

    Where all layers are alike, models of one and of two layers are counted, and the difference is repeated.

    Args:
        config: The model's configuration.
        dtype: Dtype of weights and cache.

    Attributes:
        layers: Number of layers of the decoder.
        parameters: Number of parameters.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype = torch.bfloat16) -> None:
        self._dtype = dtype
        self._config = config
        names = ("num_decoder_layers", "decoder_layers") if config.is_encoder_decoder else ("num_hidden_layers",)
        self._name = next(name for name in names if hasattr(config, name))
        self.layers: int = getattr(config, self._name)
        self._known: dict[tuple[int, int, int], PassWork] = {}
        alike = len(set(getattr(config, "layer_types", None) or ())) <= 1
        self._models = [self._make(1), self._make(2)] if alike and self.layers > 2 else [self._make(self.layers)]
        sizes = [sum(one.numel() for one in model.parameters()) for model in self._models]
        self.parameters = sizes[0] + (self.layers - 1) * (sizes[-1] - sizes[0])

    def count(self, positions: int, batch: int = 1, context: int = 0) -> PassWork:
        """Count a forward pass over the next tokens of each sequence.

        Args:
            positions: Number of tokens that each sequence reads: k + 1 to verify k draft tokens.
            batch: Number of sequences.
            context: Number of tokens of each sequence that are cached; with an encoder, also of the source.
        """
        if (key := (positions, batch, context)) in self._known:
            return self._known[key]
        found = [Counter(count_operators(model, *key)) for model in self._models]
        work = found[0]
        if len(found) > 1:
            for operator, count in (found[1] - found[0]).items():
                work[operator] += (self.layers - 1) * count
        self._known[key] = PassWork(work, self.layers)
        return self._known[key]

    def cached_bytes(self, tokens: int) -> int:
        """Return the bytes of the keys and values of so many tokens; with an encoder, of as many of its source."""
        config = self._config
        width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
        width = width or config.hidden_size // config.num_attention_heads
        copies = 4 if config.is_encoder_decoder else 2
        return int(copies * self.layers * _cached_heads(config) * width * tokens * self._dtype.itemsize)

    def _make(self, layers: int) -> PreTrainedModel:
        config = copy.deepcopy(self._config)
        setattr(config, self._name, layers)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
        make = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        with torch.device("meta"):
            model: PreTrainedModel = make.from_config(config, dtype=self._dtype)
        return model.eval()


@torch.no_grad()
def count_operators(model: PreTrainedModel, positions: int, batch: int = 1, context: int = 0) -> list[Operator]:
    """Count a forward pass of a model over the next tokens of each sequence.

    Args:
        model: The model, on any device; on `meta`, nothing is computed.
        positions: Number of tokens that each sequence reads.
        batch: Number of sequences.
        context: Number of tokens of each sequence that are cached.
    """
    config, device = model.config, model.device
    heads = _cached_heads(config)
    before, tokens = (
        torch.zeros(batch, length, dtype=torch.long, device=device) for length in (max(context, 1), positions)
    )
    arguments: dict[str, Any] = {"use_cache": True}
    if config.is_encoder_decoder:
        states = torch.zeros(*before.shape, config.hidden_size, dtype=model.dtype, device=device)
        arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        arguments["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        name = "decoder_input_ids"
    else:
        arguments["past_key_values"] = DynamicCache()
        name = "input_ids"
    with _FusedAttention([], heads):
        model(**{name: before}, **arguments)
    if not config.is_encoder_decoder:
        # As rows differ in length, and drafts may be trees, every pass has a mask.
        mask = torch.ones(batch, 1, positions, before.shape[1] + positions, dtype=torch.bool, device=device)
        arguments["attention_mask"] = mask
    found: list[Operator] = []
    weights = {one.untyped_storage()._cdata for one in model.parameters()}
    with _Counter(found, weights), _FusedAttention(found, heads):
        model(**{name: tokens}, **arguments)
    return found


def _cached_heads(config: PretrainedConfig) -> int:
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds every operator that a device would run to a list."""

    def __init__(self, found: list[Operator], weights: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found, self._weights = found, weights

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema, name = func._schema, func.overloadpacket.__name__
        aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
        view = bool(aliases) and not any(one.is_write for one in aliases)
        if view or name in _NOT_RUN:
            return result
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        outputs = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        writes = any(one.is_write for one in aliases)
        if name in _READS_ROWS:
            moved = 2 * _bytes(outputs)
        elif name == "cat":
            # A cache is written in place: only the new part is copied.
            moved = 2 * min(map(_size, inputs))
        elif writes:
            moved = 2 * _bytes(inputs[1:]) if len(inputs) > 1 else _bytes(inputs)
        else:
            moved = _bytes(inputs) + _bytes(outputs)
        weights = 0
        if name not in _READS_ROWS:
            weights = _bytes([one for one in inputs if one.untyped_storage()._cdata in self._weights])
        count: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
        self._found.append(Operator(name, weights, moved, moved, flops))
        return result


class _FusedAttention(TorchFunctionMode):
    """Takes attention for one operator, as the kernels of a GPU do.

    Args:
        found: Where to add it.
        heads: Number of heads of the cache.
    """

    def __init__(self, found: list[Operator], heads: int) -> None:
        super().__init__()
        self._found, self._heads = found, heads

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        flops, own, cached = 4 * query.numel() * key.shape[2], 2 * _size(query), _size(key) + _size(value)
        shared = cached * self._heads // key.shape[1]
        self._found.append(Operator("attention", 0, own + cached, own + shared, flops))
        with torch._C.DisableTorchFunctionSubclass():
            return query.new_empty(*query.shape[:-1], value.shape[-1])


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(map(_size, tensors))
