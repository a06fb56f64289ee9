"""Placing the rows of a batch at positions of their own, for decoders that count positions themselves.

The decoders of encoder-decoder models are told how much is cached, and take it that all rows stand there. What
they make of a position is one of two things: a bias on the attention scores by the distance of query and key (T5),
or an embedding that is added to the token's (BART, Marian, M2M100). For a forward over rows that stand apart,
either is laid out for each row, from what the model itself answers for one row that reads all positions in turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

Placing: TypeAlias = Callable[[Tensor, int], AbstractContextManager[None]]
"""Has the forwards within it see their tokens at positions `[B, T]` int64, each below a number of keys."""


def placing_of(model: Any) -> Placing | None:
    """Return how rows of an encoder-decoder model are placed; None where its way of asking is not known."""
    decoder = model.get_decoder()
    biased = [module for module in decoder.modules() if _has_bias(module)]
    if biased:
        return lambda positions, end: _relative(biased, positions, end)
    embedding = getattr(decoder, "embed_positions", None)
    ask = _ASKED.get(_parameters(embedding, "forward"))
    return None if ask is None else lambda positions, end: _embedded(embedding, ask(embedding, end), positions)


def _has_bias(module: Any) -> bool:
    embedded = isinstance(getattr(module, "relative_attention_bias", None), torch.nn.Embedding)
    return embedded and _parameters(module, "compute_bias") == _BIAS_ASKED


def _parameters(module: Any, method: str) -> tuple[str, ...]:
    """Return what a method takes; nothing where there is none."""
    found = getattr(module, method, None)
    return tuple(inspect.signature(found).parameters) if callable(found) else ()


@contextmanager
def _relative(layers: Sequence[Any], positions: Tensor, end: int) -> Iterator[None]:
    # A key that is further on than the query is masked: what stands there is of no consequence.
    distances = (positions[:, :, None] - torch.arange(end, device=positions.device)).clamp(min=0)
    with ExitStack() as stack:
        for layer in layers:
            weight = layer.relative_attention_bias.weight
            # A weight that is offloaded is on "meta" until its module is called.
            where = positions.device if weight.is_meta else weight.device
            # From the last of `end` positions, the keys are at all distances there are: end - 1, ..., 1, 0.
            line: Tensor = layer.compute_bias(1, end, device=where, past_seen_tokens=end - 1)[0, :, 0]  # [H, end]
            bias = line[:, (end - 1 - distances).to(line.device)].transpose(0, 1)  # [B, H, T, end]
            stack.enter_context(_answering(layer, "compute_bias", lambda *_, bias=bias, **__: bias))
        yield


def _embedded(embedding: Any, line: Tensor, positions: Tensor) -> AbstractContextManager[None]:
    placed = line[positions.to(line.device)]  # [end, D] -> [B, T, D]
    if not hasattr(embedding, "make_weights"):
        return _answering(embedding, "forward", lambda *_, **__: placed)

    def forward(input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        # M2M100 adds nothing to a padding token, wherever it stands.
        padding = (input_ids == embedding.padding_idx).to(placed.device)
        return placed.masked_fill(padding[:, :, None], 0.0)

    return _answering(embedding, "forward", forward)


@contextmanager
def _answering(module: Any, method: str, answer: Callable[..., Tensor]) -> Iterator[None]:
    """Have a method of a module answered by this."""
    own = vars(module).get(method)  # what spreads a model over devices puts a forward of its own there
    setattr(module, method, answer)
    try:
        yield
    finally:
        if own is None:
            delattr(module, method)  # the class's is behind it
        else:
            setattr(module, method, own)


def _of_tokens(embedding: Any, end: int) -> Any:
    return embedding(torch.zeros(1, end, dtype=torch.long))[0]  # only their number counts


def _of_embeddings(embedding: Any, end: int) -> Any:
    device = embedding.weights.device
    return embedding(inputs_embeds=torch.zeros(1, end, 1, device=device))[0]


def _of_shape(embedding: Any, end: int) -> Any:
    return embedding(torch.Size((1, end)))


_BIAS_ASKED = ("query_length", "key_length", "device", "past_seen_tokens")
_ASKED: dict[tuple[str, ...], Callable[[Any, int], Any]] = {
    ("input_ids", "past_key_values_length", "position_ids"): _of_tokens,  # BART, mBART, MVP
    ("input_ids", "inputs_embeds", "past_key_values_length"): _of_embeddings,  # M2M100, NLLB
    ("input_ids_shape", "past_key_values_length", "position_ids"): _of_shape,  # Marian, Pegasus, Blenderbot
}
"""By what it takes, how the embedding of the positions 0 to `end - 1` is asked for, `[end, D]`."""
