"""Where the tokens of a pass belong when rows are at different positions: positions, cache slots and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec_core.models.device import moved
from specdec_core.models.fast.static import block_layout
from specdec_core.models.run.cache import CHUNK

_AHEAD = 8
"""Tokens of each row that are placed before they are read: a draft reads one per pass."""


class Block(NamedTuple):
    """The input of one forward pass, aligned so that draft token i is in the same column for all rows.

    Row b holds left padding, its committed tokens that are not cached yet, its draft, and right padding. The last
    committed tokens of all rows share a column, and so do the logits that verify draft token i.

    Attributes:
        tokens: `[B, T]` int64.
        padding: Left padding of each row.
        counts: Number of tokens of each row, without padding.
        keep: Number of last columns whose logits are needed.
        draft: Number of last columns that hold draft tokens.
        inputs: Further arguments of the model's forward; tensors are aligned like the tokens.
    """

    tokens: Tensor
    padding: tuple[int, ...]
    counts: tuple[int, ...]
    keep: int
    draft: int
    inputs: Mapping[str, Any] = MappingProxyType({})


class Placed(NamedTuple):
    """The places of the tokens of a pass.

    Attributes:
        positions: `[B, T]` int64; 0 for padding.
        slots: `[B, T]` int64, of the cache; a slot that is never read for padding.
        real: `[B, T]` int64, 1 for a token and 0 for padding.
        visible: `[B, T, end]` bool, the slots that each token sees.
    """

    positions: Tensor
    slots: Tensor
    real: Tensor
    visible: Tensor

    def columns(self, first: int, last: int, end: int) -> Placed:
        """Return the places in some columns, with so many slots."""
        positions, slots, real = (part[:, first:last] for part in self[:3])
        return Placed(positions, slots, real, self.visible[:, first:last, :end])


class Placement:
    """Computes places on the CPU and copies them at once: on a GPU, each operator is a launch.

    Those of the next tokens are computed with them, and kept: the passes of a draft, which read a token of each
    row, then launch nothing.

    Args:
        device: Where they are needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numbers = torch.empty(0, dtype=torch.long, device=device)  # 0, 1, ...
        self._ahead: tuple[list[int], list[int], int, Placed] | None = None

    def keys(self, end: int, start: int = 0) -> Tensor:
        """Return the numbers of the slots from `start` to `end - 1`, `[end - start]` int64."""
        if (known := self._numbers.shape[0]) < end:
            self._numbers = torch.arange(max(2 * known, CHUNK, end), device=self._device)
        return self._numbers[start:end]

    def of(self, lengths: Sequence[int], block: Block, end: int, trash: int, *, tree: bool) -> Placed:
        """Return the places of the tokens of a block.

        Args:
            lengths: Number of cached tokens of each row.
            block: The tokens.
            end: Number of slots that the pass attends to.
            trash: The slot for padding.
            tree: Whether the draft is a tree, whose places the caller writes to what it gets.
        """
        width = block.tokens.shape[1]
        if not tree and (known := self._known(lengths, block, end, trash)) is not None:
            return known
        # A row whose draft is shorter than others is padded on the right, where its next tokens would be.
        full = all(
            not count or left + count == width for left, count in zip(block.padding, block.counts, strict=True)
        )
        ahead = _AHEAD if full and block.draft <= 1 and not tree else 0
        counts = [count + ahead if count else 0 for count in block.counts]
        layout = torch.tensor([list(lengths), list(block.padding), counts])
        found = block_layout(layout, width + ahead, trash)
        positions, slots, real = moved(torch.stack([part.long() for part in found]), self._device)
        placed = Placed(positions, slots, real, self.keys(end + ahead) <= positions[..., None])
        if ahead:
            ends = [length + count for length, count in zip(lengths, block.counts, strict=True)]
            reads = [int(count > 0) for count in block.counts]
            self._ahead = ends, reads, trash, placed.columns(width, width + ahead, end + ahead)
        return placed.columns(0, width, end)

    def _known(self, lengths: Sequence[int], block: Block, end: int, trash: int) -> Placed | None:
        """Return the places of a token of each row, if they have been computed; else None."""
        if self._ahead is None or block.tokens.shape[1] != 1:
            return None
        begun, reads, known_trash, placed = self._ahead
        if list(block.counts) != reads or trash != known_trash:
            return None
        steps = {length - before for length, before, one in zip(lengths, begun, reads, strict=True) if one}
        step = min(steps, default=-1)
        if len(steps) != 1 or not 0 <= step < _AHEAD or end > placed.visible.shape[2]:
            return None
        return placed.columns(step, step + 1, end)
