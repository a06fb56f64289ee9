"""What drafters may see of a model: its embeddings, its hidden states, and a digest to know it again by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_VALUES = 64
"""How many values of each weight the digest looks at."""


class ModelFeatures:
    """The weights of a model that its hidden states are read and made with.

    Args:
        model: A Hugging Face model with an output embedding.
        known_as: The digest it goes by; made from its weights when None.
    """

    def __init__(self, model: Any, known_as: str | None = None) -> None:
        self._model = model
        self._known_as = known_as

    @property
    def hidden_size(self) -> int:
        """D, the size of what the output embedding reads."""
        return int(self.output_embeddings.shape[1])

    @property
    def input_embeddings(self) -> Tensor:
        """Weights `[V', E]` of the embedding that (decoder) tokens are read with."""
        decoder = self._model.get_decoder() if self._model.config.is_encoder_decoder else self._model
        weight: Tensor = decoder.get_input_embeddings().weight
        return weight.detach()

    @property
    def output_embeddings(self) -> Tensor:
        """Weights `[V, D]` that turn a hidden state into logits."""
        weight: Tensor = self._model.get_output_embeddings().weight
        return weight.detach()

    def fingerprint(self) -> str:
        """Return a digest of names, shapes and some values of all weights.

        Values are rounded to bfloat16, so that a model loaded in that type or in float32 is the same one.
        """
        if self._known_as is None:
            self._known_as = _digest(self._model)
        return self._known_as

    @contextmanager
    def capture(self) -> Iterator[list[Tensor]]:
        """Collect what the output embedding reads, `[B, T, D]` a forward, in the list that is yielded."""
        seen: list[Tensor] = []
        head = self._model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            yield seen
        finally:
            hook.remove()


def features_of(model: Any) -> ModelFeatures | None:
    """Return the features of a model, or None where it has no output embedding."""
    return None if model.get_output_embeddings() is None else ModelFeatures(model)


@torch.no_grad()
def _digest(model: Any) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        flat = weight.detach().flatten()
        places = torch.linspace(0, len(flat) - 1, min(_VALUES, len(flat)), dtype=torch.float64).long()
        values = flat[places.to(flat.device)].to(torch.bfloat16).float().cpu()
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()[:32]
