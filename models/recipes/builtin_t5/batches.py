"""Batches of pairs of similar length, in an order that depends on the seed.

A batch holds as many pairs as fit into its budget of tokens, including padding. Pairs are shuffled, then sorted by
length within chunks, so that batches have little padding and differ from epoch to epoch.
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

CHUNK = 32768  # number of pairs sorted together


@dataclass(frozen=True)
class Encoded:
    """The encoded pairs of a split, from `vocabulary.encode`."""

    sources: np.ndarray  # ids of all pairs, concatenated
    source_starts: np.ndarray  # [N + 1]
    targets: np.ndarray
    target_starts: np.ndarray  # [N + 1]
    summaries: np.ndarray  # [N] bool

    def __len__(self) -> int:
        return len(self.summaries)

    def source(self, index: int) -> np.ndarray:
        """Return the ids of a prompt, including `</s>`."""
        return self.sources[self.source_starts[index] : self.source_starts[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """Return the ids of a reference, including `</s>`."""
        return self.targets[self.target_starts[index] : self.target_starts[index + 1]]


@dataclass(frozen=True)
class Batch:
    """A batch of pairs, padded on the right.

    Attributes:
        sources: [B, S] int64.
        targets: [B, T] int64, without the start token; `</s>` ends each row before its padding.
        tokens: Number of target tokens of the whole batch, over all processes, without padding.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    tokens: int


def open_split(work: Path, split: str) -> Encoded:
    """Read an encoded split."""
    with np.load(work / f"{split}.npz") as arrays:
        names = ("sources", "source_starts", "targets", "target_starts", "summaries")
        return Encoded(*(arrays[name] for name in names))


def pad(rows: list[np.ndarray]) -> torch.Tensor:
    """Return rows of ids as a tensor [B, L], padded on the right."""
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
    """Return the start of each batch among pairs sorted by length, and the end of the last.

    Args:
        lengths: [N, 2], number of source and target tokens.
        budget: Maximum number of tokens of a batch, including padding.
        multiple: The number of pairs of a batch is a multiple of this; a remainder at the end is left out.
    """
    starts, longest = [0], np.zeros(2, dtype=np.int64)
    for end in range(multiple, len(lengths) + 1, multiple):
        longest = np.maximum(longest, lengths[end - multiple : end].max(axis=0))
        first = end - multiple
        if (end - starts[-1]) * longest.sum() > budget and first > starts[-1]:
            starts.append(first)
            longest = lengths[first:end].max(axis=0)
    return [*starts, len(lengths) // multiple * multiple]


def epoch_batches(
    data: Encoded, generator: np.random.Generator, budget: int, summaries: float, multiple: int
) -> list[np.ndarray]:
    """Return the pairs of each batch of one epoch, shuffled.

    Args:
        data: The pairs.
        generator: Source of randomness.
        budget: See `cut`.
        summaries: How often an epoch contains each summary; it contains each translation once.
        multiple: See `cut`.
    """
    few = np.flatnonzero(data.summaries)
    often = generator.permutation(np.tile(few, int(np.ceil(summaries))))[: round(summaries * len(few))]
    order = generator.permutation(np.concatenate([np.flatnonzero(~data.summaries), often]))
    lengths = np.stack([np.diff(data.source_starts), np.diff(data.target_starts)], axis=1)
    batches = []
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        # By target length, then by source length: about a tenth of a batch is padding.
        chunk = chunk[np.lexsort((lengths[chunk, 0], lengths[chunk, 1] // 4))]
        cuts = cut(lengths[chunk], budget, multiple)
        batches += [chunk[a:b] for a, b in itertools.pairwise(cuts) if b > a]
    return [batches[index] for index in generator.permutation(len(batches))]


def batches_of(data: Encoded, seed: int, budget: int, summaries: float, multiple: int) -> Iterator[np.ndarray]:
    """Yield the pairs of each step, epoch after epoch; see `epoch_batches`."""
    for epoch in itertools.count():
        yield from epoch_batches(data, np.random.default_rng((seed, epoch)), budget, summaries, multiple)


def in_order(data: Encoded, indices: np.ndarray, budget: int) -> Iterator[Batch]:
    """Yield the pairs at `indices`, each once, in batches of similar length."""
    lengths = np.stack([np.diff(data.source_starts), np.diff(data.target_starts)], axis=1)[indices]
    order = np.lexsort((lengths[:, 1], lengths[:, 0]))
    cuts = cut(lengths[order], budget, 1)
    for first, end in itertools.pairwise(cuts):
        yield collect(data, indices[order[first:end]])
