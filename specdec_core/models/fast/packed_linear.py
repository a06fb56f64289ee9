"""Linear layers that multiply with packed copies of their weights.

Packed weights are in the layout that is fastest to read. Layers that have the same input, such as those of query,
key and value, multiply at once: fewer and larger products come closer to the bandwidth of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specdec_core.interface.errors import ModelError

Product = Callable[[Tensor], Tensor]
"""Multiplies rows `[..., in]` with packed weights `[out, in]` and adds a bias; returns `[..., out]`."""
Parameters = tuple[nn.Parameter, nn.Parameter | None]
"""Weights `[out, in]`, and the bias `[out]` or None."""


class SharedProduct:
    """A product for layers with the same input. The first that is called multiplies for all.

    Args:
        product: Multiplies with the weights of all layers.
        sizes: The number of outputs of each, in the order in which a pass calls them.
    """

    def __init__(self, product: Product, sizes: Sequence[int]) -> None:
        self.product = product
        self._sizes = list(sizes)
        self._last: tuple[Tensor | None, Sequence[Tensor]] = (None, ())

    def part(self, number: int, rows: Tensor) -> Tensor:
        """Return the outputs of one of the layers, `[..., out]`, for rows `[..., in]`."""
        if len(self._sizes) == 1:
            return self.product(rows)
        given, parts = self._last
        if given is not rows:
            parts = torch.split(self.product(rows), self._sizes, -1)
        self._last = (rows, parts) if number + 1 < len(self._sizes) else (None, ())
        return parts[number]


class PackedLinear(nn.Module):
    """A linear layer that multiplies with a packed copy of its weights.

    Args:
        weight: `[out, in]`, the original weights, shared with the original layer.
        bias: `[out]`, or None.
        shared: The product that it takes part in.
        number: Which of the layers of the product it is.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, shared: SharedProduct, number: int = 0
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape
        self._shared, self._number = shared, number

    @property
    def product(self) -> Product:
        """Multiplies with its weights, and with those of the layers that share its input."""
        return self._shared.product

    def forward(self, rows: Tensor) -> Tensor:
        """Apply the layer to `rows` `[..., in]`; return `[..., out]`.

        Raises:
            ModelError: `backward` asks for gradients, which packed weights do not have.
        """
        outputs = self._shared.part(self._number, rows)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.train())  # type: ignore[no-untyped-call]  # raises the error
        return outputs

    def train(self, mode: bool = True) -> PackedLinear:
        """Raise an error in training mode: the packed copy would not follow the weights."""
        if mode:
            raise ModelError(
                "packed weights have no gradients and cannot be trained. Load the model with `packed: false`."
            )
        return super().train(mode)

    def unpacked(self) -> nn.Linear:
        """Return an ordinary layer with the same weights."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        layer.weight = self.weight
        layer.register_parameter("bias", self.bias)
        return layer

    def extra_repr(self) -> str:
        """Describe the layer in a printed model."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
