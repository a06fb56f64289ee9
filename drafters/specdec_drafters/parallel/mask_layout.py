"""The layout of a training pass: mask tokens behind many positions of a sequence, all read at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskLayout:
    """Sequences with chains of mask tokens appended, which see each other as they do while drafting.

    A chain belongs to an anchor a, the last token of a committed text. Its mask at depth d stands at position
    a + d, sees the tokens up to a and the masks before it in its chain, and predicts the token at a + d + 1.

    Attributes:
        tokens: `[B, L + M]` int64, the tokens, then the masks of all chains.
        positions: `[B, L + M]` int64.
        visible: `[B, L + M, L + M]` bool.
        rows: `[N]` int64, the row of each prediction of a mask.
        columns: `[N]` int64, its column in `tokens`.
        anchors: `[N]` int64, the anchor of its chain.
        depths: `[N]` int64, from 1.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    rows: Tensor
    columns: Tensor
    anchors: Tensor
    depths: Tensor


def mask_layout(tokens: Tensor, wanted: Tensor, lengths: Tensor, mask_token: int) -> MaskLayout:
    """Lay out chains of masks behind some tokens.

    Args:
        tokens: `[B, L]` int64, what a model reads.
        wanted: `[B, L]` bool, whether the token after each is to be predicted. Only there are chains, and only up
            to the last wanted position.
        lengths: `[B, L]` int64, the number of masks in the chain of each token.
        mask_token: The mask token's id.
    """
    batch, length = tokens.shape
    device = tokens.device
    deepest = int(lengths.max()) if lengths.numel() else 0
    depth = torch.arange(1, deepest + 1, device=device)
    end = torch.arange(length, device=device)[:, None] + depth  # [L, D]
    there = wanted[:, end.clamp(max=length - 1)] & (end < length) & wanted[..., None]
    rows, anchors, depths = (there & (depth <= lengths[..., None])).nonzero(as_tuple=True)
    depths = depths + 1
    counts = torch.bincount(rows, minlength=batch)
    first = counts.cumsum(0) - counts
    numbers = torch.arange(len(rows), device=device) - first[rows]
    width = int(counts.max()) if batch else 0

    def spread(values: Tensor) -> Tensor:
        """Return `[B, width]` from the values of all masks, -1 where a row has fewer."""
        return torch.full((batch, width), -1, device=device).index_put_((rows, numbers), values)

    anchor, at = spread(anchors), spread(depths)
    same = (anchor[:, :, None] == anchor[:, None, :]) & (at[:, None, :] <= at[:, :, None])
    visible = torch.zeros(batch, length + width, length + width, dtype=torch.bool, device=device)
    visible[:, :length, :length] = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    visible[:, length:, :length] = torch.arange(length, device=device) <= anchor[..., None]
    visible[:, length:, length:] = same  # padding sees padding: no row is without anything to see
    everywhere = torch.arange(length, device=device).expand(batch, length)
    return MaskLayout(
        tokens=torch.cat([tokens, torch.full_like(anchor, mask_token)], dim=1),
        positions=torch.cat([everywhere, (anchor + at).clamp(min=0)], dim=1),
        visible=visible,
        rows=rows,
        columns=length + numbers,
        anchors=anchors,
        depths=depths,
    )


def retained_lengths(shape: torch.Size, most: int, retention: float, generator: torch.Generator) -> Tensor:
    """Draw the length of each chain, so that every depth keeps a share of the one before (COD).

    The number of masks is then below `1 / (1 - retention)` a token, however deep a chain may be.

    Args:
        shape: Of the result.
        most: The longest chain.
        retention: The share, 1 to keep all.
        generator: On the CPU.

    Returns:
        int64, 0 to `most`.

    References:
        PARD, section 3.3 (conditional drop-token; arXiv 2504.18583).
    """
    draws = torch.rand((*shape, most), generator=generator)
    return (draws < retention).long().cumprod(-1).sum(-1)
