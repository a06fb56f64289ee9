"""Features of a model for drafters: embeddings, hidden states, and a fingerprint that identifies its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import moved
from specdec_core.models.load.thread_overrides import overridden

LAYER_COUNTS = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
"""Config keys of the number of the (decoder's) layers."""
_VALUES_PER_WEIGHT = 64
"""Number of values of each weight that enter the fingerprint."""


class ModelFeatures:
    """Embeddings and hidden states of a model.

    Args:
        model: A Hugging Face model with an output embedding.
        fingerprint: Its fingerprint; computed from its weights if None.
    """

    def __init__(self, model: Any, fingerprint: str | None = None) -> None:
        self._model = model
        self._fingerprint = fingerprint
        self._copies: dict[str, Tensor] = {}

    @property
    def hidden_size(self) -> int:
        """D, the size of the hidden states that the output embedding reads."""
        return int(self._model.get_output_embeddings().weight.shape[1])

    @property
    def num_layers(self) -> int:
        """Number of the (decoder's) layers."""
        return len(layers_of(self._model))

    @property
    def input_embeddings(self) -> Tensor:
        """A copy of the weights `[V', E]` of the (decoder's) token embedding, made when it is first read."""
        decoder = self._model.get_decoder() if self._model.config.is_encoder_decoder else self._model
        weight = decoder.get_input_embeddings().weight
        if weight is self._model.get_output_embeddings().weight:
            return self.output_embeddings
        return self._copy("input", weight)

    @property
    def output_embeddings(self) -> Tensor:
        """A copy of the weights `[V, D]` that map hidden states to logits, made when it is first read."""
        return self._copy("output", self._model.get_output_embeddings().weight)

    def _copy(self, name: str, weight: Tensor) -> Tensor:
        """Return a copy of a weight, the same one each time: a drafter that writes to it changes no text.

        Raises:
            ModelError: It is offloaded.
        """
        if weight.is_meta:
            raise ModelError(
                f"the {name} embedding of this target is offloaded, and the drafter reads its weights. Map it to "
                "a device in `device_map`, or choose another drafter."
            )
        if name not in self._copies:
            self._copies[name] = weight.detach().clone()
        return self._copies[name]

    def fingerprint(self) -> str:
        """Return a hash of the names, shapes and some values of all weights.

        Values are rounded to bfloat16, so that a model has the same fingerprint in bfloat16 and in float32.

        Raises:
            ModelError: The weights cannot be read, because they are quantized or offloaded.
        """
        if self._fingerprint is None:
            try:
                self._fingerprint = _digest(self._model)
            except NotImplementedError as error:
                raise ModelError(
                    "the weights of this target are quantized or offloaded, so they cannot be identified. A "
                    "drafter that was trained for a target's weights, such as heads, needs that target "
                    "unquantized and on one device."
                ) from error
        return self._fingerprint

    def of_copy(self, model: Any) -> ModelFeatures:
        """Return the features of a copy of the model that has the same hidden states."""
        return ModelFeatures(model, self._fingerprint)

    @contextmanager
    def capture(self) -> Iterator[list[Tensor]]:
        """Yield a list to which each forward pass of this thread appends the input of the output embedding.

        Each is `[B, T, D]`. Forward passes of other threads are not seen.
        """
        hidden: list[Tensor] = []

        def forward(method: Callable[..., Tensor], states: Tensor, *args: Any, **keywords: Any) -> Tensor:
            hidden.append(states)
            return method(states, *args, **keywords)

        with overridden(self._model.get_output_embeddings(), "forward", forward):
            yield hidden

    @contextmanager
    def capture_layers(self, layers: Collection[int]) -> Iterator[dict[int, Tensor]]:
        """Yield a dict in which each forward pass of this thread leaves the outputs of layers, `[B, T, D]` each.

        Args:
            layers: n for the output of the (decoder's) first n layers, before a final norm; 0 for the embedding.

        Raises:
            ModelError: The model has no such layer.
        """
        stack = layers_of(self._model)
        if not set(layers) <= set(range(len(stack) + 1)):
            raise ModelError(
                f"the target has {len(stack)} layers; the outputs of {sorted(layers)} were asked for."
            )
        found: dict[int, Tensor] = {}

        def forward(number: int, method: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
            if number in layers:
                found[number] = args[0] if args else keywords["hidden_states"]
            output = method(*args, **keywords)
            if number + 1 == len(stack) and len(stack) in layers:
                found[len(stack)] = output[0] if isinstance(output, tuple) else output
            return output

        with ExitStack() as entered:
            for number in sorted({min(layer, len(stack) - 1) for layer in layers}):
                entered.enter_context(overridden(stack[number], "forward", partial(forward, number)))
            yield found


def features_of(model: Any) -> ModelFeatures | None:
    """Return the features of a model, or None if it has no output embedding."""
    return None if model.get_output_embeddings() is None else ModelFeatures(model)


def layers_of(model: Any) -> nn.ModuleList:
    """Return the (decoder's) layers.

    Raises:
        ModelError: They are not where transformers has them.
    """
    decoder = model.get_decoder()
    configs = (model.config.get_text_config(decoder=True), getattr(decoder, "config", None))
    # Those of an encoder-decoder model may have the encoder's number as well.
    counts = {getattr(config, key, None) for config in configs for key in LAYER_COUNTS}
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) in counts:
            return module
    raise ModelError(
        f"the layers of a {type(model).__name__}, whose outputs the drafter reads, were not found. Choose a "
        "drafter that needs no outputs of layers."
    )


@torch.no_grad()
def _digest(model: Any) -> str:
    weights, values = sorted(model.named_parameters()), []
    for _, weight in weights:
        flat = weight.detach().flatten()
        count = min(_VALUES_PER_WEIGHT, len(flat))
        positions = torch.linspace(0, len(flat) - 1, count, dtype=torch.float64).long()
        values.append(flat[moved(positions, flat.device)].to(torch.bfloat16).float())
    together = torch.cat([moved(part, values[0].device) for part in values]).cpu()
    fetched = torch.split(together, [*map(len, values)])
    digest = hashlib.sha256()
    for (name, weight), part in zip(weights, fetched, strict=True):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(part.numpy().tobytes())
    return digest.hexdigest()[:32]
