"""Models made of a model in memory: with some modules replaced, its first layers only, or passes of one shape.

They share everything else with it, which is not changed, but no passes that were compiled of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from specdec_core.interface.errors import ModelError
from specdec_core.models.features import LAYER_COUNTS, ModelFeatures, layers_of
from specdec_core.models.load.probe import FAILURES, probe_model, uncached_logits
from specdec_core.models.loaded import LoadedModel, inspect_family


def with_modules(loaded: LoadedModel, modules: Mapping[int, nn.Module]) -> LoadedModel:
    """Return a copy of a model in which some modules are replaced; all others, and the weights, are shared.

    Args:
        loaded: The model.
        modules: By the `id` of the module that each replaces.
    """
    model = _copy(loaded.model, modules)
    features = loaded.features.of_copy(model) if loaded.features is not None else None
    return replace(loaded, model=model, features=features, passes=None, exact_shapes=None)


def first_layers(loaded: LoadedModel, count: int, head: nn.Module | None = None) -> LoadedModel:
    """Return a model that ends after the first layers of another: its own final norm and head follow.

    Its layers, packed or not, are those of `loaded`, so that it takes no memory. The encoder, if there is one, is
    shared as a whole.

    Args:
        loaded: A model on one device.
        count: Number of the (decoder's) layers to keep, at least 1 and fewer than there are.
        head: Replaces the output embedding.

    Raises:
        ModelError: There are not that many layers, or they are not where transformers has them, or do not run
            without the others, or the model is spread over devices.
    """
    if loaded.spread:
        raise ModelError(
            f"{loaded.name}: its weights are spread over devices, so that its layers cannot be shared. Load it on "
            "one device."
        )
    layers = layers_of(loaded.model)
    if not 1 <= count < len(layers):
        raise ModelError(
            f"{loaded.name} has {len(layers)} layers, and {count} were asked for; take 1 to {len(layers) - 1}."
        )
    replaced: dict[int, nn.Module] = {id(layers): nn.ModuleList(list(layers)[:count])}
    if head is not None:
        replaced[id(loaded.model.get_output_embeddings())] = head
    model = _copy(loaded.model, replaced)
    decoder = model.get_decoder()
    for config in (model.config, model.config.get_text_config(decoder=True), decoder.config):
        _set_layers(config, len(layers), count)
    features = None if loaded.features is None else ModelFeatures(model)
    name = f"the first {count} layers of {loaded.name}"
    family = inspect_family(model)
    made = replace(
        loaded, model=model, name=name, family=family, features=features, passes=None, exact_shapes=None
    )
    try:
        uncached_logits(made, [0])
    except FAILURES as error:
        raise ModelError(
            f"{loaded.name} (model_type {model.config.model_type!r}): its first {count} layers do not run without "
            f"the others ({type(error).__name__}: {error}); draft with another model."
        ) from error
    probed = loaded.family != inspect_family(loaded.model)  # and found to be another than it looks
    return probe_model(made) if probed else made


def _copy(model: Any, modules: Mapping[int, nn.Module]) -> Any:
    """Return a copy whose only new modules are those that contain a replaced one."""
    tensors = (*model.parameters(), *model.buffers())
    shared: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    for module in model.modules():
        if not any(id(part) in modules for part in module.modules()):
            shared[id(module)] = module
    return copy.deepcopy(model, {**shared, **modules})


def _set_layers(config: Any, before: int, count: int) -> None:
    """Write the number of layers into a config. That of an encoder is another key, or another number."""
    for key in LAYER_COUNTS:
        if getattr(config, key, None) == before:
            setattr(config, key, count)
    types = getattr(config, "layer_types", None)
    if types and len(types) == before:
        config.layer_types = list(types)[:count]


_TILE = 16
"""Rows of a matrix that kernels compute alike: a smaller rest has other kernels, which round differently."""


def with_exact_shapes(loaded: LoadedModel, columns: bool | int = True) -> LoadedModel:
    """Return the same model, with forward passes whose shapes do not depend on drafts.

    Sums of the same numbers are rounded differently in matrix products of different shapes. In bfloat16 that
    decides some greedy tokens, so that a text that was decoded with a drafter differs from one that was decoded
    without. Here a step reads the same number of columns in both cases, over the whole capacity of the cache, and
    a prompt is read without its last token and without a draft. Batches of another size still round differently,
    and so do token trees, whose nodes are at other positions in the cache.

    Args:
        loaded: A model.
        columns: The number of tokens that a step can read, one more than the longest draft; it is rounded up to a
            multiple of 16, as kernels compute so many rows alike. True: 16; False: no such limit, which is the
            default of models.

    Raises:
        ModelError: The model reads rows at different positions in separate passes, has recurrent layers, or is
            compiled.
    """
    if columns is False:
        return loaded
    if loaded.family.recurrent:
        raise ModelError(
            f"exact_shapes: {loaded.name} has recurrent layers, whose states are rounded differently after one "
            "token at a time and after several at once, as drafts are read. Remove exact_shapes, or use dtype: "
            "float32."
        )
    if not loaded.family.ragged:
        raise ModelError(
            f"exact_shapes: {loaded.name} reads rows at different positions in separate passes, so that their "
            "shapes differ. Remove exact_shapes, or use dtype: float32."
        )
    if loaded.passes is not None:
        raise ModelError("exact_shapes and compile cannot be combined; use one of them.")
    return replace(loaded, exact_shapes=-(-int(columns) // _TILE) * _TILE)
