"""Pack linear layers for a CPU, so that verifying a few tokens costs little more than decoding one.

PyTorch's default float32 matrix product is not tuned for a handful of rows: verifying four tokens can take twice
as long as decoding one, although both read the weights once. A product that may rearrange ("pack") them beforehand
takes the time of reading them: ours, and nearly so oneDNN's, which ships with PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import available_memory, describe_device, use_huge_pages
from specdec_core.models.fast import attention  # noqa: F401  (registers it with transformers)
from specdec_core.models.fast.packed_linear import PackedLinear, Parameters, Product, SharedProduct
from specdec_core.models.fast.products import NativeProduct, supports
from specdec_core.models.load.probe import uncached_logits
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.variants import with_modules

DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes that can be packed."""
SMALLEST = 8 * 2**20
"""Size of the linear layers, in bytes, from which `packed: auto` packs. Smaller models spend their time on calls,
not on products."""
_ROWS = 8
"""Number of rows (tokens) that the layout is optimized for. Other numbers give the same results."""


class OneDnnProduct:
    """A product with weights that oneDNN has packed. Rows of another dtype, as under autocast, are converted."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._dtype, self._bias = weight.dtype, bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows `[..., in]` with the weights; return `[..., out]`."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        return product.to(rows.dtype)


def pack(loaded: LoadedModel) -> LoadedModel:
    """Return a copy of a model whose linear layers use packed weights, for a CPU.

    Its logits are the same up to rounding, since sums are added in another order. The packed weights take as much
    memory again as the linear layers. The original weights are shared with `loaded`, which is not changed. The
    copy cannot be trained: its packed weights would not follow.

    Args:
        loaded: A model on a CPU, in float32 or bfloat16.

    Raises:
        ModelError: The model is on another device, has another dtype or is quantized, PyTorch was built
            without oneDNN, or the CPU has no product of packed bfloat16 weights.
    """
    loaded.check_plain("packed")
    reason = _why_not(loaded)
    if reason is not None:
        raise ModelError(f"{loaded.name}: {reason}. Remove `packed`.")
    layers: dict[nn.Module, Any] = {layer: (layer.weight, layer.bias) for layer in _linear_layers(loaded.model)}
    modules = packed_layers(loaded, layers, lambda _, weight, bias: _product(weight, bias))
    return with_modules(loaded, modules)


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    return (NativeProduct if supports(weight.dtype) else OneDnnProduct)(weight, bias)


def packed_layers(
    loaded: LoadedModel,
    layers: Mapping[nn.Module, Parameters],
    product: Callable[[nn.Module, Tensor, Tensor | None], Product],
) -> dict[int, nn.Module]:
    """Return packed layers, by the `id` of the layer that each replaces.

    Args:
        loaded: The model, on a CPU. A forward pass of it shows which layers have the same input.
        layers: Its linear layers, with their parameters.
        product: Makes a product. It is given the first of the layers that take part, and the weights and biases of
            all, one after another.
    """
    packed: dict[int, nn.Module] = {}
    for group in _same_inputs(loaded, layers):
        weights = [layers[layer][0].detach() for layer in group]
        biases = [bias.detach() for _, bias in map(layers.__getitem__, group) if bias is not None]
        together = product(group[0], torch.cat(weights), torch.cat(biases) if biases else None)
        shared = SharedProduct(together, [len(weight) for weight in weights])
        for number, layer in enumerate(group):
            packed[id(layer)] = PackedLinear(*layers[layer], shared, number)
    return packed


def _same_inputs(loaded: LoadedModel, layers: Mapping[nn.Module, Parameters]) -> list[list[nn.Module]]:
    """Group layers of a module that a forward pass gives the same tensor, in the order in which it calls them."""
    parents = {part: module for module in loaded.model.modules() for part in module.children()}
    found: dict[tuple[object, ...], tuple[Tensor, list[nn.Module]]] = {}
    calls = Counter[nn.Module]()

    def note(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        (rows,) = arguments
        calls[layer] += 1
        # A tensor that is changed in place is not the same input. It is kept, so that its id remains its own.
        key = (id(rows), rows.float().numpy().tobytes(), parents[layer], layers[layer][1] is None)
        found.setdefault(key, (rows, []))[1].append(layer)

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        uncached_logits(loaded, [1, 1])
    finally:
        for hook in hooks:
            hook.remove()
    groups = [group for _, group in found.values() if all(calls[layer] == 1 for layer in group)]
    return groups + [[layer] for layer in layers if calls[layer] != 1]


def unpack(loaded: LoadedModel) -> LoadedModel:
    """Return a copy of a packed model with ordinary linear layers that share its weights.

    Args:
        loaded: A model; one that is not packed is returned as it is.
    """
    if not is_packed(loaded):
        return loaded
    packed = (layer for layer in loaded.model.modules() if isinstance(layer, PackedLinear))
    return with_modules(loaded, {id(layer): layer.unpacked() for layer in packed})


def is_packed(loaded: LoadedModel) -> bool:
    """Return whether the model's linear layers use packed weights."""
    return loaded.bits is None and any(isinstance(layer, PackedLinear) for layer in loaded.model.modules())


def describe_hardware(loaded: LoadedModel) -> str:
    """Return where a model runs, for results: `cpu (x86_64, 2 threads), packed weights, compiled`."""
    packed = ", packed weights" if is_packed(loaded) else f", {loaded.bits}-bit weights" if loaded.bits else ""
    return describe_device(loaded.device) + packed + (", compiled" if loaded.passes is not None else "")


def pack_as_set(loaded: LoadedModel, packed: bool | Literal["auto", "int8"]) -> LoadedModel:
    """Apply the setting `packed` to a model.

    Args:
        loaded: A model.
        packed: `auto` packs a model for which `pack` works, whose linear layers have at least `SMALLEST` bytes,
            and whose packed copy takes at most half of the memory that is free. `int8` rounds the weights; see
            `quantize`.

    Raises:
        ModelError: `packed` is True and the model cannot be packed, or `int8` and it cannot be quantized.
    """
    if packed == "int8":
        from specdec_core.models.fast.quantizing import quantize  # which unpacks

        device = next(loaded.model.parameters()).device
        if device.type != "cpu":
            raise ModelError(
                f"{loaded.name}: `packed: int8` is for a CPU; this model is on {device}. Use "
                "`quantization_config`."
            )
        return replace(quantize(loaded, 8, "packed: int8"), name=loaded.name)
    if packed == "auto":
        packed = not loaded.quantized and not loaded.spread and _why_not(loaded) is None and _pays(loaded)
    if packed:
        return pack(loaded)
    use_huge_pages(*loaded.model.parameters())  # of a packed model, the copies are read
    return loaded


def _why_not(loaded: LoadedModel) -> str | None:
    """Return why a model cannot be packed, or None."""
    weight = next(loaded.model.parameters())
    if weight.device.type != "cpu" or weight.dtype not in DTYPES:
        dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        found = f"{weight.device}, in {str(weight.dtype).removeprefix('torch.')}"
        return f"weights can be packed on a CPU, in {dtypes}; these are on {found}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without oneDNN"
    if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no product of packed bfloat16 weights (it needs AVX-512); load the model in float32"
    return None


def _pays(loaded: LoadedModel) -> bool:
    size = sum(layer.weight.nbytes for layer in _linear_layers(loaded.model))
    free = available_memory()
    return size >= SMALLEST and free is not None and 2 * size <= free


def _linear_layers(model: Any) -> list[nn.Linear]:
    return [layer for layer in model.modules() if type(layer) is nn.Linear]
