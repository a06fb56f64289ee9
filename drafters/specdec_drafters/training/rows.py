"""Training sequences, their order in batches, and the logits of a model at their positions."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from specdec_core.models import LoadedModel


@dataclass(frozen=True)
class Rows:
    """Token sequences, padded on the right.

    Attributes:
        tokens: `[N, L]` int64.
        mask: `[N, L]` bool, whether the token is to be predicted; False in the first column, in padding, and in
            prompts.
        sources: `[N, S]` int64, the encoder's input for each sequence; None without an encoder.
        source_mask: `[N, S]` bool, False in padding; None without sources.
    """

    tokens: Tensor
    mask: Tensor
    sources: Tensor | None = None
    source_mask: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def positions(self) -> int:
        """Number of tokens to predict."""
        return int(self.mask.sum())

    def take(self, chosen: Tensor | slice) -> "Rows":
        """Return some rows, without empty columns."""
        tokens, mask = self.tokens[chosen], self.mask[chosen]
        used = mask.any(0).nonzero()
        width = int(used[-1]) + 1 if len(used) else 1
        if self.sources is None or self.source_mask is None:
            return Rows(tokens[:, :width], mask[:, :width])
        sources, source_mask = self.sources[chosen], self.source_mask[chosen]
        wide = max(int(source_mask.sum(1).max()), 1)
        return Rows(tokens[:, :width], mask[:, :width], sources[:, :wide], source_mask[:, :wide])

    def split(self, positions: int) -> "list[Rows]":
        """Split the rows into parts of about this many positions, with at least one row each."""
        step = max(1, positions // self.tokens.shape[1])
        return [self.take(slice(first, first + step)) for first in range(0, len(self), step)]

    def to(self, device: torch.device) -> "Rows":
        """Return the rows on a device."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Rows(**{name: part.to(device) for name, part in parts.items() if part is not None})


def pad_rows(
    rows: Sequence[Sequence[int]], given: Sequence[int], sources: Sequence[Sequence[int]] | None = None
) -> Rows:
    """Pad sequences of unequal length.

    Args:
        rows: The tokens.
        given: Length of the prompt of each sequence; at least 1 is assumed.
        sources: The encoder's input for each sequence.
    """
    tokens, there = _padded(rows)
    context = torch.tensor([max(number, 1) for number in given])
    mask = there & (torch.arange(tokens.shape[1]) >= context[:, None])
    if sources is None:
        return Rows(tokens, mask)
    return Rows(tokens, mask, *_padded(sources))


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens `[N, L]` int64 padded with zeros, and a mask of the tokens, `[N, L]` bool."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.as_tensor(list(row), dtype=torch.long)
    return tokens, torch.arange(width) < lengths[:, None]


class Batches:
    """The batch of every step, a pure function of the step.

    Each pool contributes an equal share of every batch, in a random order that changes with every epoch.

    Args:
        pools: The sources of rows, at least one.
        tokens: Tokens per batch, with at least one row of each pool.
        seed: Seed of the orders.
    """

    def __init__(self, pools: Sequence[Rows], tokens: int, seed: int) -> None:
        self._pools = pools
        self._seed = seed
        self._counts = [
            max(1, tokens // len(pools) // max(1, round(pool.positions / len(pool)))) for pool in pools
        ]

    def at(self, step: int) -> list[Rows]:
        """Return the rows of a step, from each pool."""
        return [
            pool.take(torch.from_numpy(self._chosen(number, step * count, count)))
            for number, (pool, count) in enumerate(zip(self._pools, self._counts, strict=True))
        ]

    def _chosen(self, pool: int, first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        size = len(self._pools[pool])
        rounds = range(first // size, (first + count - 1) // size + 1)
        orders = [np.random.default_rng((self._seed, pool, number)).permutation(size) for number in rounds]
        start = first % size
        chosen: np.ndarray[tuple[int], np.dtype[np.int64]] = np.concatenate(orders)[start : start + count]
        return chosen


LARGEST_LOGITS = 1 << 24
"""The most logits computed at once, unless a single sequence has more."""


def row_logits(loaded: LoadedModel, rows: Rows) -> Tensor:
    """Return the logits at the positions to predict, sequence after sequence: `[N, V']`.

    Args:
        loaded: The model; its encoder, if any, reads the sources.
        rows: The sequences, on the model's device. N is the number of positions, V' the size of the logits.
    """
    tokens = embeddable(loaded, rows.tokens[:, :-1])
    wanted = rows.mask[:, 1:]
    if loaded.encoder_decoder:
        logits: Tensor = loaded.model(**model_inputs(loaded, rows, tokens), use_cache=False).logits[wanted]
        return logits
    # Padding is on the right and attention is causal, so no mask is needed.
    first = int(wanted.any(0).nonzero()[0]) if wanted.any() else 0
    keywords = {"logits_to_keep": tokens.shape[1] - first} if loaded.family.trims_logits and first else {}
    everything: Tensor = loaded.model(input_ids=tokens, use_cache=False, **keywords).logits
    return everything[:, first - tokens.shape[1] :][wanted[:, first:]]


def model_inputs(loaded: LoadedModel, rows: Rows, tokens: Tensor) -> dict[str, Tensor]:
    """Return the arguments with which a model reads tokens `[B, L]`, those of an encoder with the sources of rows.

    Padding is on the right and attention is causal, so that a decoder needs no mask.
    """
    if not loaded.encoder_decoder:
        return {"input_ids": tokens}
    assert rows.sources is not None, "an encoder needs sources"
    assert rows.source_mask is not None
    sources, mask = embeddable(loaded, rows.sources), rows.source_mask.long()
    return {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": tokens}


def embeddable(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """Return the tokens, with 0 for those without an embedding (padding of the other model's vocabulary)."""
    return torch.where(tokens < loaded.vocab_size, tokens, 0)


def same_width(p_logits: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Cut both to the smaller vocabulary, `[N, V]`; the rest is padding."""
    width = min(p_logits.shape[1], logits.shape[1])
    return p_logits[:, :width], logits[:, :width]


def autocast_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the data type of matrix products.

    Args:
        wanted: `float32`, `bfloat16`, or `auto`: bfloat16 if the hardware supports it.
        device: The device.
    """
    if wanted != "auto":
        named: torch.dtype = getattr(torch, wanted)
        return named
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    # Without hardware support, bfloat16 is slower than float32. These names are not public; if they are missing,
    # use float32.
    has = (getattr(torch.cpu, f"_is_{what}_supported", bool) for what in ("avx512_bf16", "amx_tile"))
    return torch.bfloat16 if device.type == "cpu" and any(ask() for ask in has) else torch.float32


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for matrix products of that data type."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
