"""A quantized copy of a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel, unpack, with_modules
from specdec_drafters.quantized.layers import Int4Linear, Int8Linear, QuantizedLinear

_LEAST = 0.5
"""The share of the weights that linear layers must hold."""


def quantized_copy(target: LoadedModel, bits: int) -> LoadedModel:
    """Return a copy of a model with quantized linear layers; it shares everything else with the model.

    Args:
        target: The model; packed or not.
        bits: 8 or 4.

    Raises:
        ModelError: Its weights are quantized already, spread over devices, or mostly not in linear layers, or the
            device needs torchao, which is not installed.
    """
    target.check_plain("drafter: quantized")
    plain = unpack(target)
    layers = dict(_linear_layers(plain.model))
    _check_share(plain, layers)
    head = plain.model.get_output_embeddings()
    on_cpu = plain.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    quantize = _on_cpu if on_cpu else _by_torchao
    modules = {id(layer): quantize(layer, 8 if layer is head else bits) for layer in layers}
    return replace(with_modules(plain, modules), name=f"{target.name} in {bits} bits")


def _linear_layers(model: Any) -> Iterator[tuple[nn.Module, int]]:
    """Yield the linear layers, each with its number of weights."""
    for layer in model.modules():
        if type(layer) in (nn.Linear, Conv1D):
            yield layer, layer.weight.numel()


def _check_share(target: LoadedModel, layers: dict[nn.Module, int]) -> None:
    embeddings = {id(layer.weight) for layer in target.model.modules() if isinstance(layer, nn.Embedding)}
    others = sum(weight.numel() for weight in target.model.parameters() if id(weight) not in embeddings)
    linear = sum(count for layer, count in layers.items() if id(layer.weight) not in embeddings)
    if linear < _LEAST * others:
        raise ModelError(
            f"drafter 'quantized': {target.name} has most of its weights outside linear layers (a mixture of "
            "experts?), so that its copy would be no faster. Choose another drafter."
        )


def _weight_and_bias(layer: Any) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Return the weights `[out, in]` and the bias of a linear layer. GPT-2's are stored the other way round."""
    if isinstance(layer, Conv1D):
        return nn.Parameter(layer.weight.detach().T, requires_grad=False), layer.bias
    return layer.weight, layer.bias


def _on_cpu(layer: nn.Module, bits: int) -> QuantizedLinear:
    """Return a layer for a CPU. Where 4-bit weights have no product for its shape, they have 8 bits."""
    weight, bias = _weight_and_bias(layer)
    kind = Int4Linear if bits == 4 and Int4Linear.takes(weight) else Int8Linear
    return kind(weight, bias)


def _by_torchao(layer: nn.Module, bits: int) -> nn.Module:
    """Return a layer whose weights torchao has quantized.

    Raises:
        ModelError: torchao is not installed, or cannot quantize it.
    """
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise ModelError(
            "drafter 'quantized': on this device it needs torchao: pip install 'specdec-core[torchao]'."
        ) from error
    weight, bias = _weight_and_bias(layer)
    copied = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    copied.weight = weight
    copied.register_parameter("bias", bias)
    holder = nn.Sequential(copied)
    config = Int8WeightOnlyConfig() if bits == 8 else Int4WeightOnlyConfig(int4_packing_format="tile_packed_to_4d")
    try:
        quantize_(holder, config)
    except (RuntimeError, ValueError, NotImplementedError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"drafter 'quantized': torchao cannot quantize this target: {reason}") from error
    return holder[0]
