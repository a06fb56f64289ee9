"""Random numbers: one generator per sequence, so that a sequence does not depend on the others in its batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MAX_UNIFORM = 1 - 2**-52
"""The largest uniform number that is drawn. Multiplied by any total, it rounds to less than the total."""

_BLOCK = 512
_CHUNK = 128
_CHUNK = 128


class RowGenerators:
    """A stream of uniform random numbers for each row of a batch.

    No number is used twice, not even after a rejection: a controller may have chosen the next gamma by the
    rejected tokens, and given that choice a reused number would no longer be uniform.

    Args:
        seeds: One seed per row.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        # Drawn on the CPU, so that a seed gives the same numbers on every device.
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._blocks = [self._draw(generator) for generator in self._generators]
        self._cursors = [0] * len(seeds)

    @staticmethod
    def _draw(generator: torch.Generator) -> list[float]:
        numbers = torch.rand(_BLOCK, generator=generator, dtype=torch.float64)
        return numbers.clamp_(max=MAX_UNIFORM).tolist()

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

    def uniforms(self, counts: Sequence[int], width: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw as `numbers`; return `[B, width]` float64 on a device."""
        return torch.tensor(self.numbers(counts, width), dtype=torch.float64).to(device, non_blocking=True)


def row_seed(seed: int, index: int) -> int:
    """Return the seed of the sequence with this index in a call; (0, 1) and (1, 0) give different seeds."""
    mixed = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    mixed ^= mixed >> 31
    mixed = (mixed * 0xD6E8FEB86659FD93) & (2**64 - 1)
    return mixed ^ (mixed >> 32)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index per row, with probability proportional to its weight, by inversion.

    Args:
        weights: `[B, V]` float, non-negative; they need not sum to 1.
        uniforms: `[B]` float64 in [0, 1 - 2**-52], from `RowGenerators`.

    Returns:
        `[B]` int64. An index with weight zero is returned only if all weights of the row are zero.
    """
    return draw_with_total(weights, uniforms)[0]


def draw_with_total(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as `draw`; also return the sum of each row's weights, `[B]` float64 (NaN if any weight is NaN)."""
    if weights.device.type == "cpu" and len(weights) > 1 and weights.shape[1] > _CHUNK:
        return _draw_by_chunks(weights, uniforms)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1]
    # u <= 1 - 2**-52, so that u * total rounds to less than the total and an index is found.
    index = torch.searchsorted(sums, (uniforms * total)[:, None], right=True)[:, 0]
    return index.clamp_(max=weights.shape[1] - 1), total


def _draw_by_chunks(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw for several rows on a CPU, where running sums over all V would take longer than the softmax.

    Inversion finds a chunk by the sums of all chunks, and then an index in it by running sums over that chunk. For
    a single row, the small operations that this takes cost more than they save.
    """
    size = weights.shape[1]
    whole = size - size % _CHUNK
    sums = weights[:, :whole].unflatten(1, (-1, _CHUNK)).sum(dim=2)
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    running = sums.numpy().cumsum(axis=1, dtype=np.float64)
    index = []
    for row, upto, uniform in zip(weights.numpy(), running, uniforms.tolist(), strict=True):
        wanted = uniform * upto[-1]
        chunk = min(int(upto.searchsorted(wanted, side="right")), len(upto) - 1)
        first = chunk * _CHUNK
        inside = row[first : first + _CHUNK].cumsum(dtype=np.float64)
        # The same weights added in another order: rounding must not lead out of the chunk.
        left = min(wanted - (upto[chunk - 1] if chunk else 0.0), MAX_UNIFORM * inside[-1])
        index.append(min(first + int(inside.searchsorted(left, side="right")), size - 1))
    return torch.tensor(index), torch.from_numpy(running[:, -1])
