"""Rows of tokens to train on, and in which order they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Token rows, padded behind to one length.

    Attributes:
        tokens: `[N, L]` int64.
        mask: `[N, L]` bool: the token is there to be predicted from those before it. False in the first column,
            in padding, and in prompts that are only context.
        sources: `[N, S]` int64, what an encoder reads for each row; None without one.
        source_mask: `[N, S]` bool, False in the padding of the sources; None without them.
    """

    tokens: Tensor
    mask: Tensor
    sources: Tensor | None = None
    source_mask: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def positions(self) -> int:
        """How many tokens there are to predict."""
        return int(self.mask.sum())

    def take(self, chosen: Tensor | slice) -> Rows:
        """Return some rows, with the columns that hold nothing left out."""
        tokens, mask = self.tokens[chosen], self.mask[chosen]
        used = mask.any(0).nonzero()
        width = int(used[-1]) + 1 if len(used) else 1
        if self.sources is None or self.source_mask is None:
            return Rows(tokens[:, :width], mask[:, :width])
        sources, source_mask = self.sources[chosen], self.source_mask[chosen]
        wide = max(int(source_mask.sum(1).max()), 1)
        return Rows(tokens[:, :width], mask[:, :width], sources[:, :wide], source_mask[:, :wide])

    def split(self, positions: int) -> list[Rows]:
        """Return the rows in parts of at most about so many positions, and at least one row each."""
        step = max(1, positions // self.tokens.shape[1])
        return [self.take(slice(first, first + step)) for first in range(0, len(self), step)]

    def to(self, device: torch.device) -> Rows:
        """Return the rows on a device."""
        if self.sources is None or self.source_mask is None:
            return Rows(self.tokens.to(device), self.mask.to(device))
        places = (self.tokens, self.mask, self.sources, self.source_mask)
        return Rows(*(tensor.to(device) for tensor in places))


def pad_rows(
    rows: Sequence[Sequence[int]], given: Sequence[int], sources: Sequence[Sequence[int]] | None = None
) -> Rows:
    """Put rows of unequal length together.

    Args:
        rows: The tokens.
        given: How many tokens at the beginning of each row are context only; at least the first always is.
        sources: What an encoder reads for each row.
    """
    tokens, there = _padded(rows)
    context = torch.tensor([max(number, 1) for number in given])
    mask = there & (torch.arange(tokens.shape[1]) >= context[:, None])
    if sources is None:
        return Rows(tokens, mask)
    return Rows(tokens, mask, *_padded(sources))


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens `[N, L]` int64 with zeros behind, and where they are, `[N, L]` bool."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.as_tensor(list(row), dtype=torch.long)
    return tokens, torch.arange(width) < lengths[:, None]


class Batches:
    """The batch of every step, the same one whenever it is asked for.

    Each pool gives an equal share of a batch, and is gone through in an order of its own that changes with every
    round.

    Args:
        pools: Where the rows come from, at least one.
        tokens: Tokens of a batch; it has at least a row of each pool.
        seed: Of the orders.
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
