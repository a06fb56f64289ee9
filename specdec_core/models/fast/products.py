"""Products of a few rows with packed weights, in C++, for a CPU with AVX-512.

Decoding multiplies a handful of rows with all weights, so that a product should take the time of reading its
weights once. PyTorch's own products are made for many rows and take two to five times as long. `kernels.cpp` is
compiled on first use, with PyTorch's settings and into TorchInductor's cache.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_core.interface.errors import exception_text
from specdec_core.models.device import use_huge_pages

LANES = 16
"""Outputs that are packed together."""
_INPUTS = {torch.float32: 1, torch.bfloat16: 2, torch.uint8: 4}
"""Inputs that fill 32 bits, by the dtype of the weights."""
_GROUP = 32
"""Inputs of a row that share a scale when they are rounded to 8 bits."""


class NativeProduct:
    """A product with packed weights. What it returns for a row does not depend on the other rows.

    Args:
        weight: `[out, in]`, in a dtype that `supports` is true of. Weights of 8 bits are given as uint8, with an
            offset of 128; rows are then rounded to 8 bits, with a scale for each `_GROUP` inputs.
        bias: `[out]`, or None.
        scales: `[out]` float32, the scales of weights of 8 bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> None:
        self._outputs, self._dtype = len(weight), weight.dtype if scales is None else torch.float32
        self._bias, self._scales = None if bias is None else bias.float(), scales
        each = _INPUTS[weight.dtype]
        missing = -weight.shape[1] % (each if scales is None else _GROUP)
        self._odd = scales is None and missing > 0
        self._inputs = weight.shape[1] + self._odd
        padded = pad(weight, (0, missing, 0, -len(weight) % LANES))
        self._packed = padded.view(-1, LANES, padded.shape[1] // each, each).transpose(1, 2).contiguous()
        use_huge_pages(self._packed)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows `[..., in]` of any dtype, and add the bias; return `[..., out]` in their dtype."""
        inputs = rows.to(self._dtype)
        if self._odd:  # not `pad`, which would fix the number of rows where it is traced
            inputs = torch.cat([inputs, torch.zeros_like(inputs[..., :1])], -1)
        product: Tensor = torch.ops.specdec.product(
            inputs, self._packed, self._scales, self._bias, self._inputs, self._outputs
        )
        return product.to(rows.dtype)


def supports(dtype: torch.dtype) -> bool:
    """Return whether there is a product with weights of a dtype: the CPU has it, and so has the compiler.

    Args:
        dtype: float32, bfloat16 or, for weights of 8 bits, uint8.
    """
    has = {
        torch.float32: torch.cpu._is_avx512_supported,
        torch.bfloat16: torch.cpu._is_avx512_bf16_supported,
        torch.uint8: torch.cpu._is_vnni_supported,
    }
    library = _compiled() if has[dtype]() else None
    return library is not None and (dtype is not torch.bfloat16 or bool(library.has_bfloat16()))


@cache
def _compiled() -> Any:
    """Compile the products, once in a process, and register the operators of `torch.ops.specdec`.

    Returns:
        The library, or None if that failed.
    """
    from torch._inductor.codecache import CppCodeCache

    try:
        library = CppCodeCache.load((Path(__file__).parent / "kernels.cpp").read_text(encoding="utf-8"))
    except Exception as error:  # whatever a compiler and its set-up may lack
        warnings.warn(
            f"The products with packed weights could not be compiled: {exception_text(error)}. They need a C++ "
            "compiler, such as g++. PyTorch's are used, which are slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    for name in ("specdec::product", "specdec::gated_product"):
        torch.library.register_fake(name, _outputs_of)
    torch.library.register_fake("specdec::attention", _attended)
    return library


def _outputs_of(rows: Tensor, *arguments: Any) -> Tensor:
    """Return a tensor without data like what a product returns."""
    return rows.new_empty(*rows.shape[:-1], arguments[-1])


def _attended(queries: Tensor, keys: Tensor, values: Tensor, *arguments: Any) -> Tensor:  # noqa: ARG001
    """Return a tensor without data like what attention returns."""
    batch, heads, width, _ = queries.shape
    return queries.new_empty(batch, width, heads, values.shape[3])
