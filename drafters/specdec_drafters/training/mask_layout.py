"""The layout of a training pass: mask tokens behind many positions of a sequence, all read at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_drafters.training.drafts import DraftStep
from specdec_drafters.training.losses import distillation
from specdec_drafters.training.rows import Rows


@dataclass(frozen=True)
class MaskLayout:
    """Sequences with chains of mask tokens appended, which see each other as they do while drafting.

    A chain belongs to an anchor a, the last token of a committed text. Its mask at depth d stands at position
    a + d, sees the tokens up to a and the masks before it in its chain, and predicts what a token at a + d would.

    There is a prediction at each of the W wanted tokens, then one at each of the C masks: N in all.

    Attributes:
        wanted: `[B, L]` bool, the tokens at which something is to be predicted.
        tokens: `[B, L + M]` int64, the tokens, then the masks of all chains.
        positions: `[B, L + M]` int64.
        visible: `[B, L + M, L + M]` bool.
        rows: `[C]` int64, the row of each mask.
        columns: `[C]` int64, its column in `tokens`.
        anchors: `[C]` int64, the anchor of its chain.
        depths: `[C]` int64, from 1.
    """

    wanted: Tensor
    tokens: Tensor
    positions: Tensor
    visible: Tensor
    rows: Tensor
    columns: Tensor
    anchors: Tensor
    depths: Tensor

    @property
    def masks(self) -> int:
        """The largest number of masks of a row, M."""
        return self.tokens.shape[1] - self.wanted.shape[1]

    def predictions(self, values: Tensor) -> Tensor:
        """Return the values at the wanted tokens, then those at the masks, `[N, ...]` from `[B, L + M, ...]`."""
        at_tokens = values[:, : self.wanted.shape[1]][self.wanted]
        return torch.cat([at_tokens, values[self.rows, self.columns]])

    @property
    def predicted(self) -> Tensor:
        """The number of the wanted token at which the same token of the text is predicted, `[N]` int64."""
        numbers = self.numbers
        return torch.cat([numbers[self.wanted], numbers[self.rows, self.anchors + self.depths]])

    @property
    def numbers(self) -> Tensor:
        """The number of each wanted token among all, `[B, L]` int64; -1 elsewhere."""
        counted = self.wanted.flatten().cumsum(0).view_as(self.wanted) - 1
        return torch.where(self.wanted, counted, -1)


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
        wanted=wanted,
        tokens=torch.cat([tokens, torch.full_like(anchor, mask_token)], dim=1),
        positions=torch.cat([everywhere, (anchor + at).clamp(min=0)], dim=1),
        visible=visible,
        rows=rows,
        columns=length + numbers,
        anchors=anchors,
        depths=depths,
    )


def mean_loss(layout: MaskLayout, p_logits: Tensor, logits: Tensor, share: float, temperature: float) -> Tensor:
    """Return the mean loss of all predictions; see `training.losses.distillation`.

    Args:
        layout: The layout.
        p_logits: `[W, V]`, the target's at the wanted tokens.
        logits: `[N, V]`, the drafter's, of all predictions.
        share: Share of total variation.
        temperature: Temperature of both.
    """
    loss, _ = distillation(p_logits[layout.predicted], logits, share, temperature)
    return loss / max(len(logits), 1)


def masked_drafts(
    layout: MaskLayout, p_logits: Tensor, logits: Tensor, tokens: Tensor, depth: int
) -> Iterator[DraftStep]:
    """Yield the depths of drafts from every `depth`-th token; no q depends on the draft before it.

    Args:
        layout: The layout, with chains of `depth` - 1 masks at the tokens that `spaced` returns.
        p_logits: `[W, V]`, the target's at the wanted tokens.
        logits: `[N, V]`, the drafter's, of all predictions.
        tokens: `[W]` int64, the tokens of the text that are predicted at the wanted tokens.
        depth: Length of the longest draft.
    """
    wanted, numbers = layout.wanted, layout.numbers
    # The prediction of each draft at each depth; -1 where there is none.
    drafts = torch.full((*wanted.shape, depth), -1, device=wanted.device)
    drafts[..., 0] = torch.where(spaced(wanted.shape, depth, wanted.device), numbers, -1)
    masks = torch.arange(len(layout.rows), device=wanted.device) + int(wanted.sum())
    drafts[layout.rows, layout.anchors, layout.depths] = masks
    for at in range(depth):
        where = drafts[..., at] >= 0
        rows, columns = where.nonzero(as_tuple=True)
        text = numbers[rows, columns + at]
        yield DraftStep(logits[drafts[where][:, at]], p_logits[text], tokens[text], where)


def spaced(shape: torch.Size, depth: int, device: torch.device) -> Tensor:
    """Return every `depth`-th token of each row, `[B, L]` bool."""
    return (torch.arange(shape[1], device=device) % depth == 0).expand(shape)


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


def drawn_lengths(rows: Rows, shape: torch.Size, depth: int, retention: float, seed: int, done: float) -> Tensor:
    """Return the lengths of the chains of a step, `[B, L]` int64; see `retained_lengths`.

    Args:
        rows: The rows of the step.
        shape: B and L.
        depth: Tokens of the longest draft: one more than the masks.
        retention: The share of the chains that is kept from depth to depth.
        seed: The seed of the run.
        done: The completed share of the run, so that the chains differ from step to step.
    """
    own = hash((seed, int(rows.tokens.sum()), rows.positions, done)) % (1 << 63)
    lengths = retained_lengths(shape, depth - 1, retention, torch.Generator().manual_seed(own))
    return lengths.to(rows.tokens.device)
