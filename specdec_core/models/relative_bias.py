"""Relative positions, as T5's decoder has them, where the rows of a batch stand at different places.

The library's forward takes one place for all rows, since it counts positions itself. What it makes of them is a
bias on the attention scores, by the distance of query and key alone. So for a forward over rows at different
places, that bias is laid out for each row, from the model's own numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class RelativeBias:
    """The attention layers of a decoder that turn distances into a bias.

    Args:
        layers: Modules with `compute_bias(query_length, key_length, device, past_seen_tokens)`.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, model: Any) -> RelativeBias | None:
        """Return those of a model's decoder; None where it has none whose way of asking is known."""
        decoder = model.get_decoder() if model.config.is_encoder_decoder else None
        layers = [] if decoder is None else [one for one in decoder.modules() if _has_bias(one)]
        return cls(layers) if layers else None

    @contextmanager
    def at(self, positions: Tensor, end: int) -> Iterator[None]:
        """Have a forward see its tokens at positions of their own.

        Args:
            positions: `[B, T]` int64, below `end`.
            end: How many keys each token may be compared with.
        """
        # A key that is further on than the query is masked: what stands there is of no consequence.
        distances = (positions[:, :, None] - torch.arange(end, device=positions.device)).clamp(min=0)
        for layer in self._layers:
            layer.compute_bias = _answer(_laid_out(layer, distances, end))
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.compute_bias  # the class's own is behind it


def _has_bias(module: Any) -> bool:
    if not isinstance(getattr(module, "relative_attention_bias", None), torch.nn.Embedding):
        return False
    asked = inspect.signature(module.compute_bias).parameters
    return list(asked) == ["query_length", "key_length", "device", "past_seen_tokens"]


def _laid_out(layer: Any, distances: Tensor, end: int) -> Tensor:
    """Return the bias `[B, H, T, end]` of tokens at distances `[B, T, end]` from the keys."""
    # To the last of `end` positions, the keys are at all distances there are: end - 1, ..., 1, 0.
    line: Tensor = layer.compute_bias(1, end, past_seen_tokens=end - 1)[0, :, 0]  # [H, end]
    return line[:, (end - 1 - distances).to(line.device)].transpose(0, 1)


def _answer(bias: Tensor) -> Any:
    def compute_bias(*_: Any, **__: Any) -> Tensor:
        return bias

    return compute_bias
