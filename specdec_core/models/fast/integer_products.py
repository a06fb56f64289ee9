"""Products with weights of 8 or 4 bits, for a CPU.

Decoding a token takes the time of reading the weights, so that a quarter of the bytes is a quarter of the time, if
the product is fast with few rows. Ours of 8-bit integers is; elsewhere it is oneDNN's. PyTorch has one of 4-bit
weights with bfloat16. All want their weights packed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from specdec_core.models.fast.packed_linear import Product
from specdec_core.models.fast.products import NativeProduct, supports

_TINY = 1e-20
"""Stands for the largest value of a row of zeros."""
GROUP = 32
"""Number of 4-bit weights that share a scale and a zero point."""
_WIDE = 16
"""A layer of 4-bit weights has a multiple of this number of outputs."""


def int8_product(weight: Tensor, bias: Tensor | None) -> Product:
    """Return a product with weights rounded to 8 bits, with a scale for each output.

    Rows are rounded when they are multiplied, each by itself, and integers are accumulated, so that a product does
    not depend on the number of rows. Our own product rounds rows with a scale for each 32 inputs.
    """
    if not supports(torch.uint8):
        return Int8Product(weight, bias)
    values, scales = round_to_int8(weight)
    return NativeProduct((values.short() + 128).to(torch.uint8), bias, scales)


class Int8Product:
    """oneDNN's product of 8-bit weights, and 8-bit activations with a scale for each row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        values, scales = round_to_int8(weight)
        self._packed, self._bias = torch.ops.onednn.qlinear_prepack(values, None), bias
        self._scales = scales / activation_steps()  # those of the rows are, too
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows `[..., in]` with the rounded weights; return `[..., out]`."""
        return _with_bias(self._product, rows, self._bias)

    def _product(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        largest = rows.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        steps = activation_steps()
        # oneDNN takes unsigned activations, here around steps + 1; cutting off the fraction rounds to them.
        unsigned = torch.div(rows, largest).mul_(steps).add_(steps + 1.5).to(torch.uint8)
        return _int8_product(unsigned, steps + 1, self._packed, self._scales, self._zeros).mul_(largest)


def _int8_product(unsigned: Tensor, zero: int, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Multiply rows `[N, in]` uint8, less `zero`, with packed int8 weights; return `[N, out]` float32."""
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(unsigned, 1.0, zero, packed, scales, zeros), *(None, 1.0, 0, torch.float32, "none", [], "")
    )
    return product


@cache
def activation_steps() -> int:
    """Return the largest absolute value of a rounded activation: 127, or 63 where 127 would not be exact.

    A CPU without VNNI adds two products in 16 bits, which saturate beyond 7 bits of an activation. Whether it does
    is tried once.
    """
    values = torch.full((16, 64), 127, dtype=torch.int8)
    packed, scales = torch.ops.onednn.qlinear_prepack(values, None), torch.ones(16)
    largest = torch.full((1, 64), 255, dtype=torch.uint8)
    product = _int8_product(largest, 128, packed, scales, torch.zeros(16, dtype=torch.int64))
    return 127 if bool((product == 127 * 127 * 64).all()) else 63


class Int4Product:
    """4-bit weights with a scale and a zero point for each group of `GROUP`, multiplied with bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        values, scales_and_zeros = round_to_int4(weight)
        self._packed, self._bias = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1), bias
        self._scales_and_zeros = scales_and_zeros

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Return whether there is a product for weights of this shape."""
        return weight.shape[1] % GROUP == 0 and weight.shape[0] % _WIDE == 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows `[..., in]` with the rounded weights; return `[..., out]`."""
        return _with_bias(self._product, rows, self._bias)

    def _product(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.bfloat16(), self._packed, GROUP, self._scales_and_zeros
        )
        return product


def _with_bias(product: Callable[[Tensor], Tensor], rows: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a product of rows `[N, in]` to rows `[..., in]` of any dtype, and add a bias."""
    result = product(rows.reshape(-1, rows.shape[-1])).to(rows.dtype)
    result = result.view(*rows.shape[:-1], result.shape[-1])
    return result if bias is None else result + bias


def round_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights `[out, in]` as int8 between -127 and 127, and the scale of each row, `[out]` float32."""
    weight = weight.float().contiguous()
    scales = weight.abs().amax(1).div_(127).clamp_min_(_TINY)
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def round_to_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights `[out, in]` as int32 between 0 and 15, and a scale and a zero point for each group.

    A weight is `(value - 8) * scale + zero`.

    Returns:
        The values `[out, in]`, and `[in / GROUP, out, 2]` bfloat16.
    """
    groups = weight.float().reshape(len(weight), -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).clamp_min_(_TINY).bfloat16()
    zeros = (low + 8 * scales.float()).bfloat16()
    wide, offset = scales.float()[..., None], zeros.float()[..., None]
    values = ((groups - offset) / wide).round_().add_(8).clamp_(0, 15).to(torch.int32)
    return values.flatten(1), torch.stack([scales, zeros], -1).transpose(0, 1).contiguous()
