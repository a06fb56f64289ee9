"""Random numbers: one generator per sequence, so that a sequence does not depend on the others in its batch."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

Uniforms: TypeAlias = Tensor | Sequence[float]
"""Random numbers of a position, one for each row: float64, or a list where weights are on a CPU."""
MAX_UNIFORM = 1 - 2**-52
"""The largest uniform number that is drawn. Multiplied by any total, it rounds to less than the total."""

_BLOCK = 512
_CHUNK = 128
_LARGE = 2**14
"""From this vocabulary on, a CPU draws by sums of chunks: slower for 8,000 tokens, and faster for 32,000."""


class RowGenerators:
    """A stream of uniform random numbers for each row of a batch.

    No number is used twice, not even after a rejection: a controller may have chosen the next gamma by the
    rejected tokens, and given that choice a reused number would no longer be uniform.

    Args:
        seeds: One per row, from 0 to 2**64 - 1. All 64 bits count: different seeds give different streams.

    Raises:
        ValueError: A seed is out of range.
        TypeError: A seed is not an integer.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        if any(not 0 <= operator.index(seed) < 2**64 for seed in seeds):
            raise ValueError("a seed is a whole number from 0 to 2**64 - 1")
        # Drawn by numpy: the same numbers on every device, and torch's CPU generator keeps 32 bits of a seed.
        self._generators = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
        self._blocks = [self._draw(generator) for generator in self._generators]
        self._cursors = [0] * len(seeds)

    @staticmethod
    def _draw(generator: np.random.Generator) -> list[float]:
        numbers: list[float] = np.minimum(generator.random(_BLOCK), MAX_UNIFORM).tolist()
        return numbers

    def _take(self, row: int, count: int) -> list[float]:
        taken: list[float] = []
        while len(taken) < count:
            if self._cursors[row] == _BLOCK:
                self._blocks[row] = self._draw(self._generators[row])
                self._cursors[row] = 0
            start = self._cursors[row]
            part = self._blocks[row][start : start + count - len(taken)]
            self._cursors[row] += len(part)
            taken += part
        return taken

    def numbers(self, counts: Sequence[int], width: int) -> list[list[float]]:
        """Draw `counts[b]` numbers in [0, 1 - 2**-52] for each row b.

        Args:
            counts: How many numbers to draw for each row.
            width: Length of each list, at least the largest count.

        Returns:
            B lists, padded with 0.5.
        """
        return [self._take(row, count) + [0.5] * (width - count) for row, count in enumerate(counts)]


def row_seed(seed: int, index: int) -> int:
    """Return the seed of the sequence with this index in a call; (0, 1) and (1, 0) give different seeds."""
    mixed = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    mixed ^= mixed >> 31
    mixed = (mixed * 0xD6E8FEB86659FD93) & (2**64 - 1)
    return mixed ^ (mixed >> 32)


def draw(weights: Tensor, uniforms: Uniforms) -> Tensor:
    """Draw one index per row, with probability proportional to its weight, by inversion.

    Args:
        weights: `[B, V]` float, non-negative; they need not sum to 1.
        uniforms: `[B]` float64 in [0, 1 - 2**-52], from `RowGenerators`; for weights on a CPU also as a list.

    Returns:
        `[B]` int64. An index with weight zero is returned only if all weights of the row are zero.
    """
    if _is_large(weights):
        # Less work than `torch.tensor`, which takes some 20 us more after a forward pass.
        return torch.from_numpy(np.array([index for index, _ in _draw_by_chunks(weights, uniforms)]))
    return draw_with_total(weights, torch.as_tensor(uniforms, dtype=torch.float64, device=weights.device))[0]


def draw_with_total(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as `draw`; also return the sum of each row's weights, `[B]` float64 (NaN if any weight is NaN)."""
    index, total = invert(weights, uniforms)
    return index.clamp(max=weights.shape[1] - 1), total


def invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as `draw_with_total`, but return V where all weights of a row are zero, or any is NaN."""
    if _is_large(weights):
        tokens, totals = zip(*_draw_by_chunks(weights, uniforms), strict=True)
        return torch.tensor(tokens), torch.tensor(totals, dtype=torch.float64)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1]
    # u <= 1 - 2**-52, so that u * total rounds to less than the total and an index is found.
    return torch.searchsorted(sums, (uniforms * total)[:, None], right=True)[:, 0], total


def _is_large(weights: Tensor) -> bool:
    return weights.is_cpu and weights.shape[1] >= _LARGE


def draw_from_row(weights: NDArray[np.floating], uniform: float) -> tuple[int, float]:
    """Draw as `draw_with_total` for one row `[V]` on a CPU, without running sums over all V."""
    return _draw_by_chunks(torch.from_numpy(weights)[None], [uniform])[0]


def _draw_by_chunks(weights: Tensor, uniforms: Uniforms) -> list[tuple[int, float]]:
    """Draw as `draw_with_total`; inversion finds a chunk by the sums of all chunks, and then an index in it."""
    size = weights.shape[1]
    width = min(_CHUNK, size)
    sums = weights.unfold(1, width, width).sum(2).tolist()  # faster than numpy's sums
    if rest := size % width:
        for row, last in zip(sums, weights[:, -rest:].numpy().sum(1).tolist(), strict=True):
            row.append(last)
    numbers = uniforms.tolist() if isinstance(uniforms, Tensor) else uniforms
    return list(map(_draw_in_chunk, weights.numpy(), sums, numbers))


def _draw_in_chunk(weights: NDArray[np.floating], sums: Sequence[float], uniform: float) -> tuple[int, float]:
    """Draw from weights `[V]`, given the sums of its chunks. So few numbers are added faster by Python."""
    running = list(accumulate(sums))
    total = running[-1]
    wanted = uniform * total
    chunk = min(bisect_right(running, wanted), len(running) - 1)
    first = chunk * _CHUNK
    inside = list(accumulate(weights[first : first + _CHUNK].tolist()))
    before = running[chunk - 1] if chunk else 0.0
    # The same weights added in another order: rounding must not lead out of the chunk.
    left = min(wanted - before, MAX_UNIFORM * inside[-1])
    return min(first + bisect_right(inside, left), len(weights) - 1), total
