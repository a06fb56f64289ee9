"""Inflating a model: the same distribution at the cost of a larger one.

Layers are added whose output projections are zero: each reads and multiplies all its weights and adds nothing.
With such a target, c and the memory traffic of a large model are met without having one.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from specdec_core.errors import ModelError
from specdec_core.models.features import ModelFeatures
from specdec_core.models.load import wrap_model
from specdec_core.models.loaded import LoadedModel

_OUTPUTS = ("self_attn.o_proj", "mlp.down_proj")


def inflate(loaded: LoadedModel, layers: int, width: int | None = None) -> LoadedModel:
    """Return a copy of a model with further layers that change nothing but the cost.

    Args:
        loaded: A Llama-shaped model: decoder layers in `model.layers`, with `self_attn.o_proj` and
            `mlp.down_proj`.
        layers: How many layers to add.
        width: The size of their feed-forward parts (`intermediate_size`); that of the model when None.

    Returns:
        The larger model, in the same dtype and on the same device; the one handed in stays as it was.

    Raises:
        ModelError: The model is not of that shape.
    """
    model = copy.deepcopy(loaded.model)
    stack = getattr(getattr(model, "model", None), "layers", None)
    if stack is None or any(_part(stack[0], name) is None for name in _OUTPUTS):
        raise ModelError(f"{loaded.name}: only Llama-shaped models can be inflated, not {type(model).__name__}.")
    config = copy.deepcopy(model.config)
    config.intermediate_size = width or config.intermediate_size
    kinds = getattr(model.config, "layer_types", None)
    if kinds:
        model.config.layer_types = config.layer_types = [*kinds, *[kinds[-1]] * layers]
    first = next(stack.parameters())
    for index in range(len(stack), len(stack) + layers):
        layer = type(stack[0])(config, layer_idx=index).to(first.device, first.dtype)
        with torch.no_grad():
            for name in _OUTPUTS:
                part: Any = _part(layer, name)
                for weight in part.parameters():
                    weight.zero_()
        stack.append(layer)
    model.config.num_hidden_layers = len(stack)
    larger = wrap_model(model, loaded.tokenizer, f"{loaded.name} + {layers} layers")
    if loaded.features is None:
        return larger
    # Its hidden states are those of the model handed in, so whatever was trained on those fits it too.
    return replace(larger, features=ModelFeatures(model, loaded.features.fingerprint()))


def _part(layer: Any, name: str) -> Any:
    for step in name.split("."):
        layer = getattr(layer, step, None)
    return layer
