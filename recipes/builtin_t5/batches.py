"""Batches of pairs of like length, in an order that follows from the seed.

A batch holds as many pairs as its padded tokens allow. Pairs are shuffled, then sorted by length within
chunks, so that little of a batch is padding and no two epochs have the same batches.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from recipes.builtin_t5.vocabulary import PAD_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 32768  # pairs that are sorted together


@dataclass(frozen=True)
class Encoded:
    """The pairs of a split as `vocabulary.encode` wrote them."""

    sources: np.ndarray  # ids, all pairs in a row
    source_starts: np.ndarray  # [N + 1]
    targets: np.ndarray
    target_starts: np.ndarray  # [N + 1]
    summaries: np.ndarray  # [N] bool

    def __len__(self) -> int:
        return len(self.summaries)

    def source(self, index: int) -> np.ndarray:
        """Return the ids of a prompt, `</s>` included."""
        return self.sources[self.source_starts[index] : self.source_starts[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """Return the ids of a reference, `</s>` included."""
        return self.targets[self.target_starts[index] : self.target_starts[index + 1]]


@dataclass(frozen=True)
class Batch:
    """Some pairs, padded on the right.

    Attributes:
        sources: [B, S] int64.
        targets: [B, T] int64, without the start token; every row ends in `</s>` before its padding.
        tokens: how many tokens of the whole batch's targets are no padding, over all processes.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    tokens: int


def open_split(work: Path, split: str) -> Encoded:
    """Read what `vocabulary` wrote for a split."""
    with np.load(work / f"{split}.npz") as arrays:
        names = ("sources", "source_starts", "targets", "target_starts", "summaries")
        return Encoded(*(arrays[name] for name in names))


def pad(rows: list[np.ndarray]) -> torch.Tensor:
    """Return rows of ids as one tensor [B, L], padded on the right."""
    width = max(map(len, rows))
    padded = np.full((len(rows), width), PAD_ID, dtype=np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def collect(data: Encoded, indices: np.ndarray, rank: int = 0, world: int = 1) -> Batch:
    """Return a process's share of the pairs at `indices`."""
    own = indices[rank::world]
    tokens = int((data.target_starts[indices + 1] - data.target_starts[indices]).sum())
    return Batch(pad([data.source(index) for index in own]), pad([data.target(index) for index in own]), tokens)


def cut(lengths: np.ndarray, budget: int, multiple: int) -> list[int]:
    """Return where batches begin among pairs sorted by length, and the end of the last.

    Args:
        lengths: [N, 2], tokens of source and target.
        budget: the most tokens of a batch, padding included.
        multiple: what the number of pairs of a batch is a multiple of; a rest at the end is left out.
    """
    starts, most = [0], np.zeros(2, dtype=np.int64)
    for end in range(multiple, len(lengths) + 1, multiple):
        most = np.maximum(most, lengths[end - multiple : end].max(axis=0))
        first = end - multiple
        if (end - starts[-1]) * most.sum() > budget and first > starts[-1]:
            starts.append(first)
            most = lengths[first:end].max(axis=0)
    return [*starts, len(lengths) // multiple * multiple]


def epoch_batches(
    data: Encoded, generator: np.random.Generator, budget: int, summaries: float, multiple: int
) -> list[np.ndarray]:
    """Return the pairs of each batch of one epoch, shuffled.

    Args:
        data: the pairs.
        generator: the only source of chance.
        budget: see `cut`.
        summaries: how often each summary stands in an epoch; translations stand in it once.
        multiple: see `cut`.
    """
    few = np.flatnonzero(data.summaries)
    often = generator.permutation(np.tile(few, int(np.ceil(summaries))))[: round(summaries * len(few))]
    order = generator.permutation(np.concatenate([np.flatnonzero(~data.summaries), often]))
    lengths = np.stack([np.diff(data.source_starts), np.diff(data.target_starts)], axis=1)
    batches = []
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        # By target first, and by source among those nearly as long: then a tenth of a batch is padding.
        chunk = chunk[np.lexsort((lengths[chunk, 0], lengths[chunk, 1] // 4))]
        places = cut(lengths[chunk], budget, multiple)
        batches += [chunk[a:b] for a, b in itertools.pairwise(places) if b > a]
    return [batches[place] for place in generator.permutation(len(batches))]


def batches_of(data: Encoded, seed: int, budget: int, summaries: float, multiple: int) -> Iterator[np.ndarray]:
    """Yield the pairs of one step after another, epoch after epoch; see `epoch_batches`."""
    for epoch in itertools.count():
        yield from epoch_batches(data, np.random.default_rng((seed, epoch)), budget, summaries, multiple)


def in_order(data: Encoded, indices: np.ndarray, budget: int) -> Iterator[Batch]:
    """Yield the pairs at `indices`, each once, in batches of like length."""
    lengths = np.stack([np.diff(data.source_starts), np.diff(data.target_starts)], axis=1)[indices]
    order = np.lexsort((lengths[:, 1], lengths[:, 0]))
    places = cut(lengths[order], budget, 1)
    for first, end in itertools.pairwise(places):
        yield collect(data, indices[order[first:end]])
