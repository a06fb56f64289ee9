"""Copies of a model whose linear layers have weights of 8 or 4 bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specdec_core.interface.errors import ModelError
from specdec_core.models.fast.integer_products import Int4Product, int8_product
from specdec_core.models.fast.packed_linear import Parameters, Product
from specdec_core.models.fast.packing import packed_layers, unpack
from specdec_core.models.features import ModelFeatures
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.variants import with_modules

_LEAST = 0.5
"""The share of the weights that linear layers must hold."""


def quantize(loaded: LoadedModel, bits: int, setting: str = "quantize") -> LoadedModel:
    """Return a copy of a model with quantized linear layers; it shares everything else with the model.

    On a CPU, 8-bit weights have a scale per output, and activations are rounded to 8 bits with a scale per 32
    inputs (per token where the CPU has no VNNI), so that the logits of a token depend on no other token of the
    pass. 4-bit weights have a scale and a zero point per 32 inputs, and activations are in bfloat16. Other devices
    need torchao. The output embedding has 8 bits.

    Args:
        loaded: The model; packed or not.
        bits: 8 or 4.
        setting: What asks for it, for messages.

    Raises:
        ModelError: Its weights are quantized already, spread over devices, or mostly not in linear layers, or the
            device needs torchao, which is not installed.
    """
    loaded.check_plain(setting)
    plain = unpack(loaded)
    layers = {layer: _parameters(layer) for layer in plain.model.modules() if type(layer) in (nn.Linear, Conv1D)}
    _check_share(plain, layers, setting)
    head = plain.model.get_output_embeddings()
    if plain.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        modules = packed_layers(plain, layers, lambda layer, *both: _product(8 if layer is head else bits, *both))
    else:
        modules = {
            id(layer): _by_torchao(both, 8 if layer is head else bits, setting) for layer, both in layers.items()
        }
    copied = with_modules(plain, modules)
    features = copied.features
    if plain.features is not None:  # a record of the original is not one of the copy
        features = ModelFeatures(copied.model, f"{plain.features.fingerprint()}-int{bits}")
    return replace(copied, name=f"{loaded.name} in {bits} bits", bits=bits, features=features)


def _check_share(loaded: LoadedModel, layers: Mapping[nn.Module, Parameters], setting: str) -> None:
    embeddings = {id(layer.weight) for layer in loaded.model.modules() if isinstance(layer, nn.Embedding)}
    others = sum(weight.numel() for weight in loaded.model.parameters() if id(weight) not in embeddings)
    linear = sum(weight.numel() for weight, _ in layers.values() if id(weight) not in embeddings)
    if linear < _LEAST * others:
        held = Counter[str]()
        for layer in loaded.model.modules():
            if layer not in layers and not isinstance(layer, nn.Embedding):
                held[type(layer).__name__] += sum(weight.numel() for weight in layer.parameters(recurse=False))
        ((kind, _),) = held.most_common(1)
        raise ModelError(
            f"{setting}: {loaded.name} has most of its weights in layers of the class {kind}, and only those in "
            "torch's Linear are quantized, so that a quantized copy would be no faster."
        )


def _parameters(layer: Any) -> Parameters:
    """Return the weights `[out, in]` and the bias of a linear layer. GPT-2's are stored the other way round."""
    if isinstance(layer, Conv1D):
        return nn.Parameter(layer.weight.detach().T, requires_grad=False), layer.bias
    return layer.weight, layer.bias


def _product(bits: int, weight: Tensor, bias: Tensor | None) -> Product:
    """Return a product on a CPU. Where 4-bit weights have none for their shape, they have 8 bits."""
    return (Int4Product if bits == 4 and Int4Product.takes(weight) else int8_product)(weight, bias)


def _by_torchao(parameters: Parameters, bits: int, setting: str) -> nn.Module:
    """Return a linear layer whose weights torchao has quantized.

    Raises:
        ModelError: torchao is not installed, or cannot quantize it.
    """
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise ModelError(
            f"{setting}: on this device it needs torchao: pip install 'specdec-core[torchao]'."
        ) from error
    weight, bias = parameters
    copied = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    copied.weight = weight
    copied.register_parameter("bias", bias)
    holder = nn.Sequential(copied)
    config = Int8WeightOnlyConfig() if bits == 8 else Int4WeightOnlyConfig(int4_packing_format="tile_packed_to_4d")
    try:
        quantize_(holder, config)
    except (RuntimeError, ValueError, NotImplementedError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{setting}: torchao cannot quantize this model: {reason}") from error
    return holder[0]
