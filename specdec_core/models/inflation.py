"""Models made slower without changing their output, to study speculative decoding with larger targets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec_core.interface.errors import ModelError
from specdec_core.models.fast.compiling import compile_model
from specdec_core.models.fast.packing import is_packed, pack, unpack
from specdec_core.models.features import ModelFeatures
from specdec_core.models.load.probe import uncached_logits
from specdec_core.models.load.wrapping import wrap_model
from specdec_core.models.loaded import LoadedModel


@dataclass(frozen=True)
class _Stack:
    """One stack of layers of an architecture.

    Attributes:
        layers: Path of the list of layers. The module that holds the list also holds the config of its layers.
        outputs: Paths, within a layer, of the projections that write to the residual stream. If their weights are
            zero, the layer is the identity.
        width: Config key of the size of the feed-forward part.
        count: Config key of the number of layers.
        encoder: Whether this is the encoder.
    """

    layers: str
    outputs: tuple[str, ...]
    width: str
    count: str
    encoder: bool = False


_ARCHITECTURES = {
    "Llama": (
        _Stack("model.layers", ("self_attn.o_proj", "mlp.down_proj"), "intermediate_size", "num_hidden_layers"),
    ),
    "T5": (
        _Stack(
            "encoder.block",
            ("layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo"),
            "d_ff",
            "num_layers",
            encoder=True,
        ),
        _Stack(
            "decoder.block",
            ("layer.0.SelfAttention.o", "layer.1.EncDecAttention.o", "layer.2.DenseReluDense.wo"),
            "d_ff",
            "num_decoder_layers",
        ),
    ),
    "M2M100": (
        _Stack(
            "model.encoder.layers",
            ("self_attn.out_proj", "fc2"),
            "encoder_ffn_dim",
            "encoder_layers",
            encoder=True,
        ),
        _Stack(
            "model.decoder.layers",
            ("self_attn.out_proj", "encoder_attn.out_proj", "fc2"),
            "decoder_ffn_dim",
            "decoder_layers",
        ),
    ),
}
"""Stacks by architecture. Others have the same structure (Qwen3 as Llama, mT5 as T5, mBART as M2M100)."""


def inflate(
    loaded: LoadedModel, layers: int, width: int | None = None, encoder_width: int | None = None
) -> LoadedModel:
    """Return a copy of a model with additional layers that cost time but do not change its output.

    The new layers have zeros in the projections that write to the residual stream.

    Args:
        loaded: A model with the structure of Llama, T5 or M2M100.
        layers: Number of layers to add; to the encoder as well, for an encoder-decoder model.
        width: Size of their feed-forward parts (`intermediate_size`, `d_ff`); the model's own if None.
        encoder_width: The same for layers of the encoder; `width` if None. A small value keeps the encoder cheap.

    Returns:
        The larger model, with the same dtypes and device, and packed and compiled if `loaded` is. `loaded` is not
        changed.

    Raises:
        ModelError: The model has another structure or is quantized, or its output would change because it
            normalizes sums after each layer (BART), or `encoder_width` is given but the model has no encoder.
    """
    loaded.check_plain("inflate")
    original, packed = unpack(loaded), is_packed(loaded)
    if encoder_width is not None and not loaded.encoder_decoder:
        raise ModelError(f"{loaded.name} has no encoder to inflate. Remove `encoder_width`.")
    model = copy.deepcopy(original.model)
    add_layers(model, loaded.name, layers, width, encoder_width)
    larger = wrap_model(model, loaded.tokenizer, f"{loaded.name} + {layers} layers")
    _check_same_output(original, larger)
    if loaded.features is not None:
        # Hidden states are unchanged too, so that heads trained for `loaded` also work for the larger model.
        larger = replace(larger, features=ModelFeatures(model, loaded.features.fingerprint()))
    larger = pack(larger) if packed else larger
    return larger if loaded.passes is None else compile_model(larger)


def add_layers(
    model: Any, name: str, layers: int, width: int | None = None, encoder_width: int | None = None
) -> None:
    """Add layers that are the identity to a model of transformers, in place; see `inflate`.

    Raises:
        ModelError: The model, which messages call `name`, has another structure.
    """
    for stack in _stacks(model, name):
        _add_layers(model, stack, layers, encoder_width or width if stack.encoder else width)


def _stacks(model: Any, name: str) -> tuple[_Stack, ...]:
    """Return the stacks of the model's architecture."""
    for stacks in _ARCHITECTURES.values():
        if all(_has_stack(model, stack) for stack in stacks):
            return stacks
    known = [
        f"{kind} (" + "; ".join(f"{s.layers} with {', '.join(s.outputs)}" for s in stacks) + ")"
        for kind, stacks in _ARCHITECTURES.items()
    ]
    raise ModelError(
        f"{name}: a {type(model).__name__} cannot be inflated, only models with the structure of "
        f"{', '.join(known[:-1])} or {known[-1]}. Remove `inflate`, or choose such a target."
    )


def _has_stack(model: Any, stack: _Stack) -> bool:
    blocks = _submodule(model, stack.layers)
    if not isinstance(blocks, torch.nn.ModuleList) or not len(blocks):
        return False
    # The last one is copied; those of a hybrid before it may be recurrent.
    return all(_submodule(blocks[-1], name) is not None for name in stack.outputs)


def _add_layers(model: Any, stack: _Stack, layers: int, width: int | None) -> None:
    """Add layers that are the identity to a stack, in place."""
    blocks, parent = _submodule(model, stack.layers), _submodule(model, stack.layers.rpartition(".")[0])
    config = copy.deepcopy(parent.config)
    if width is not None:
        setattr(config, stack.width, width)
    length = len(blocks) + layers
    types = getattr(parent.config, "layer_types", None)
    if types:
        parent.config.layer_types = config.layer_types = [*types, *[types[-1]] * layers]
    last = blocks[-1]
    takes_index = "layer_idx" in inspect.signature(type(last).__init__).parameters
    for index in range(len(blocks), length):
        with next(last.parameters()).device:  # gigabytes are made where they stay
            layer = type(last)(config, **({"layer_idx": index} if takes_index else {}))
        _match_device_and_dtype(layer, last)
        with torch.no_grad():
            for weight in _weights(_submodule(layer, name) for name in stack.outputs):
                weight.zero_()
        blocks.append(layer.eval())
    setattr(model.config, stack.count, length)
    if parent.config is not model.config:  # T5's stacks have separate configs
        parent.config.num_hidden_layers = length


def _match_device_and_dtype(layer: torch.nn.Module, other: torch.nn.Module) -> None:
    """Give a layer another's device and dtypes. Some families keep single weights of a layer in float32."""
    others = dict(other.named_parameters())
    first = next(iter(others.values()))
    layer.to(first.device, first.dtype)
    for name, weight in layer.named_parameters():
        if name in others:
            weight.data = weight.data.to(others[name].dtype)


def _weights(parts: Iterable[Any]) -> Iterable[torch.Tensor]:
    for part in parts:
        yield from part.parameters()


def _check_same_output(loaded: LoadedModel, larger: LoadedModel) -> None:
    """Check that the larger model's logits are those of the original.

    Raises:
        ModelError: They are not.
    """
    tokens = [token % loaded.vocab_size for token in (3, 4, 5, 6)]
    before, after = (uncached_logits(model, tokens) for model in (loaded, larger))
    # Equal up to the last bit, except for kernels that do not add in a fixed order.
    tolerance = 4 * torch.finfo(before.dtype).eps * before.abs().max()
    if not (after - before).abs().max() <= tolerance:
        raise ModelError(
            f"{loaded.name}: a {type(loaded.model).__name__} cannot be inflated: added layers change its "
            "output, because it normalizes sums after each layer. Remove `inflate`, or choose a target whose "
            "layers normalize their inputs, such as T5 or Llama."
        )


def _submodule(module: Any, name: str) -> Any:
    """Return the submodule with a dotted name, or None if there is none."""
    for step in name.split(".") if name else ():
        module = getattr(module, step, None)
    return module
