"""Positions per sequence for encoder-decoder models, whose decoders take no `position_ids`.

Such a decoder derives positions from the length of its cache and assumes that all sequences are at the same one.
It uses positions in one of two ways: as a relative position bias on the attention scores (T5), or as a learned or
sinusoidal embedding added to the token embedding (BART, Marian, M2M100). For a ragged forward pass, the method
that computes the bias or embedding is overridden in the thread that runs the pass: it is asked once for all
positions, and each sequence gets its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specdec_core.models.load.thread_overrides import overridden

PositionPatch: TypeAlias = Callable[[Tensor, Tensor], AbstractContextManager[None]]
"""Context manager in which a forward pass sees its tokens at positions `[B, T]` int64, and the cached ones at
positions `[B, end]` or `[end]`, all below `end`."""


def position_patch(model: Any, *, keep: bool = False) -> PositionPatch | None:
    """Return the patch for an encoder-decoder model, or None if it computes positions in an unknown way.

    Args:
        model: The model.
        keep: Keep what was computed from its weights, which do not change while the patch is used.
    """
    decoder = model.get_decoder()
    biased = [module for module in decoder.modules() if _has_relative_bias(module)]
    if biased:
        tables: dict[int, Tensor] | None = {} if keep else None
        return lambda positions, keys: _patched_biases(biased, positions, keys, tables)
    embedding = getattr(decoder, "embed_positions", None)
    parameters = _parameters(embedding, "forward")
    # The name before transformers 5.24.
    embed = _EMBED_BY_SIGNATURE.get(
        tuple("cache_length" if name == "past_key_values_length" else name for name in parameters)
    )
    if embed is None:
        return None
    return lambda positions, keys: _patched_embedding(embedding, embed(embedding, keys.shape[-1]), positions)


def _has_relative_bias(module: Any) -> bool:
    has_table = isinstance(getattr(module, "relative_attention_bias", None), torch.nn.Embedding)
    return has_table and _parameters(module, "compute_bias") == _COMPUTE_BIAS_SIGNATURE


def _parameters(module: Any, method: str) -> tuple[str, ...]:
    """Return the parameter names of a method; empty if it does not exist."""
    found = getattr(module, method, None)
    return tuple(inspect.signature(found).parameters) if callable(found) else ()


@contextmanager
def _patched_biases(
    layers: Sequence[Any], positions: Tensor, keys: Tensor, tables: dict[int, Tensor] | None
) -> Iterator[None]:
    # Keys after the query are masked, so any distance will do for them.
    distances = (positions[:, :, None] - keys.unsqueeze(-2)).clamp(min=0)
    with ExitStack() as stack:
        for layer in layers:
            table = _bias_table(layer, keys.shape[-1], positions.device, tables)
            bias = table[:, distances.to(table.device)].transpose(0, 1)  # [B, H, T, end]
            stack.enter_context(overridden(layer, "compute_bias", lambda *_, bias=bias, **__: bias))
        yield


def _bias_table(layer: Any, end: int, device: torch.device, tables: dict[int, Tensor] | None) -> Tensor:
    """Return the bias at each distance of at least the first `end`, `[H, end]`."""
    known = None if tables is None else tables.get(id(layer))
    if known is not None and known.shape[1] >= end:
        return known
    size = end if known is None else max(end, 2 * known.shape[1])
    weight = layer.relative_attention_bias.weight
    # An offloaded weight is on "meta" until its module is called.
    there = device if weight.is_meta else weight.device
    # Seen from the last of `size` positions, the keys are at distances size - 1, ..., 1, 0.
    biases: Tensor = layer.compute_bias(1, size, device=there, past_seen_tokens=size - 1)[0, :, 0].flip(1)
    if tables is not None:
        tables[id(layer)] = biases
    return biases


def _patched_embedding(embedding: Any, vectors: Tensor, positions: Tensor) -> AbstractContextManager[None]:
    vectors = vectors.reshape(-1, vectors.shape[-1])  # some modules add a dimension for the batch
    result = vectors[positions.to(vectors.device)]  # [end, D] -> [B, T, D]
    if not hasattr(embedding, "make_weights"):
        return overridden(embedding, "forward", lambda *_, **__: result)

    def forward(_method: Any, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        # M2M100 gives padding tokens a zero embedding at any position.
        padding = (input_ids == embedding.padding_idx).to(result.device)
        return result.masked_fill(padding[:, :, None], 0.0)

    return overridden(embedding, "forward", forward)


def _embed_by_ids(embedding: Any, end: int) -> Any:
    return embedding(torch.zeros(1, end, dtype=torch.long))  # only the shape matters


def _embed_by_inputs(embedding: Any, end: int) -> Any:
    device = embedding.weights.device
    return embedding(inputs_embeds=torch.zeros(1, end, 1, device=device))[0]


def _embed_by_shape(embedding: Any, end: int) -> Any:
    return embedding(torch.Size((1, end)))


_COMPUTE_BIAS_SIGNATURE = ("query_length", "key_length", "device", "past_seen_tokens")
_EMBED_BY_SIGNATURE: dict[tuple[str, ...], Callable[[Any, int], Any]] = {
    ("input_ids", "cache_length", "position_ids"): _embed_by_ids,  # BART, mBART, Whisper
    ("input_ids", "inputs_embeds", "cache_length"): _embed_by_inputs,  # M2M100, NLLB
    ("input_ids_shape", "cache_length", "position_ids"): _embed_by_shape,  # Marian, Pegasus, Blenderbot
}
"""How to get the embeddings of positions 0 to `end - 1`, `[end, D]`, by the parameters of the module's forward."""
