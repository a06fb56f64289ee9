"""Packing weights for the matrix products of a CPU, whose time then hardly grows with the few rows of a draft.

PyTorch's own product of a float32 matrix with a few rows is tuned for other shapes: verifying four tokens may take
twice as long as decoding one, though both read the same weights once. The library for neural networks that PyTorch
brings along (oneDNN) keeps to the time of that reading, if it may lay out the weights as it likes beforehand.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.errors import ModelError
from specdec_core.models.loaded import LoadedModel

FORMATS = (torch.float32, torch.bfloat16)
"""Number formats that can be packed."""
_ROWS = 8
"""The number of rows that the layout is chosen for: one step's tokens. Others are multiplied as exactly."""


class PackedLinear(nn.Module):
    """A linear layer with a second, packed copy of its weights, which it multiplies with.

    Attributes:
        weight: `[out, in]`, the layer's own, for whoever reads it; shared with the layer that it was made from.
        bias: `[out]`, or None.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        # In a tuple, where no conversion of the module's format or device would find it and fail.
        self._packed = (torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS),)

    def forward(self, rows: Tensor) -> Tensor:
        """Return `rows` `[..., in]` times the weights, plus the bias: `[..., out]`."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, *self._packed, self.bias, "none", [], "")
        return product

    def extra_repr(self) -> str:
        """Return what a printed model says of the layer."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def pack(loaded: LoadedModel) -> LoadedModel:
    """Return a copy of a model on a CPU whose linear layers multiply with packed weights.

    It says the same, up to the rounding of sums that are added in another order, and costs as much memory again as
    the linear layers take. The weights themselves are shared with the model handed in, which stays as it was.

    Args:
        loaded: A model on a CPU, in float32 or bfloat16.

    Raises:
        ModelError: It is elsewhere or in another format, or this PyTorch was built without oneDNN.
    """
    weight = next(loaded.model.parameters())
    if weight.device.type != "cpu" or weight.dtype not in FORMATS:
        formats = " or ".join(str(one).removeprefix("torch.") for one in FORMATS)
        raise ModelError(
            f"{loaded.name}: weights are packed on a CPU, in {formats}; these are on {weight.device}, in "
            f"{str(weight.dtype).removeprefix('torch.')}. Leave `packed` out."
        )
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise ModelError(f"{loaded.name}: this PyTorch was built without oneDNN. Leave `packed` out.")
    shared: dict[int, Any] = {id(one): one for one in (*loaded.model.parameters(), *loaded.model.buffers())}
    model = copy.deepcopy(loaded.model, shared)
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    for name, layer in layers:
        around, _, last = name.rpartition(".")
        setattr(model.get_submodule(around), last, PackedLinear(layer))
    return replace(loaded, model=model)
