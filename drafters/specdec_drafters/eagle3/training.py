"""The loss of an EAGLE-3 head on text: drafts from every position at once, unrolled or at mask tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specdec_core.models import LoadedModel
from specdec_drafters.eagle3.model import Eagle3Head
from specdec_drafters.training.draft_scores import Scores, depth_scores
from specdec_drafters.training.losses import distillation
from specdec_drafters.training.mask_layout import MaskLayout, draft_scores, mask_layout, mean_loss, spaced
from specdec_drafters.training.rows import Rows


@dataclass(frozen=True)
class TargetReading:
    """The output of one target forward pass over a batch of sequences.

    Attributes:
        rows: The sequences x_0 ... x_(T - 1).
        states: `[B, T, states * target_size]`, what the head reads of each token.
        logits: `[B, T, V]`, after each token.
    """

    rows: Rows
    states: Tensor
    logits: Tensor


@torch.no_grad()
def read_target(target: LoadedModel, rows: Rows, layers: Sequence[int], device: torch.device) -> TargetReading:
    """Run the target over training sequences.

    Args:
        target: The target; its encoder, if any, reads the sources.
        rows: The sequences.
        layers: The layers that the head reads.
        device: Where the result goes.
    """
    assert target.features is not None
    rows = rows.to(target.device)
    keywords: dict[str, Any] = {"input_ids": rows.tokens}
    if target.encoder_decoder:
        assert rows.source_mask is not None, "an encoder needs sources"
        mask = rows.source_mask.long()
        keywords = {"input_ids": rows.sources, "attention_mask": mask, "decoder_input_ids": rows.tokens}
    # Padding is on the right and attention is causal, so the decoder needs no mask.
    with target.features.capture_layers(layers) as found:
        logits = target.model(**keywords, use_cache=False).logits[..., : target.vocab_size]
    states = torch.cat([found[layer].to(device) for layer in layers], dim=-1)
    return TargetReading(rows.to(device), states.float(), logits.float().to(device))


@dataclass(frozen=True)
class _Step:
    """The drafts' tokens at one depth.

    Attributes:
        logits: `[N, draft vocabulary]`, of each draft that has a token to predict there.
        p_logits: `[N, V]`, the target's.
        tokens: `[N]` int64, the text's.
        where: `[B, T - 1]` bool, the positions from which these drafts begin.
    """

    logits: Tensor
    p_logits: Tensor
    tokens: Tensor
    where: Tensor


def unrolled(head: Eagle3Head, reading: TargetReading, count: int) -> Iterator[_Step]:
    """Draft `count` tokens of the text from every position; yield the depths of the drafts in turn.

    The draft from position t begins with the entry of token t + 1, which reads the target's state of token t. Its
    token at depth s has an entry that reads the text's token there and the head's own state of the depth before.
    That entry sees what it sees in decoding: the entries up to t that read the target's states, and those of its
    own draft.

    References:
        "Training-time test", section 3.2 of arXiv 2503.01840.
    """
    tokens, mask = reading.rows.tokens, reading.rows.mask
    entries, device = tokens.shape[1] - 1, tokens.device
    cache = DynamicCache()
    states = head.combine(reading.states[:, :-1])
    own = torch.eye(entries, dtype=torch.bool, device=device)
    visible = torch.ones_like(own).tril_()
    positions = torch.arange(entries, device=device)
    # As in decoding: the first token that the target sampled is read, not drafted.
    begins = mask[:, 1:]
    for depth in range(min(count, entries - 1)):
        read = torch.nn.functional.pad(tokens[:, 1 + depth :], (0, depth))
        states, normed = head.read(read, states, cache, visible[None, None], positions[None] + depth)
        wanted = torch.nn.functional.pad(mask[:, 2 + depth :], (0, depth + 1)) & begins
        rows, columns = wanted.nonzero(as_tuple=True)
        ahead = columns + depth + 2
        yield _Step(
            head.lm_head(normed[rows, columns]), reading.logits[rows, ahead - 1], tokens[rows, ahead], wanted
        )
        visible = torch.cat([visible, own], dim=1)


def unrolled_loss(
    head: Eagle3Head, reading: TargetReading, count: int, decay: float, share: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of drafts, summed over positions and depths; and its unweighted sum of weights.

    Args:
        head: The head.
        reading: What the target says.
        count: Length of the drafts.
        decay: Weight of a depth, relative to the one before.
        share: Share of total variation; see `training.losses.distillation`. Both p and q are normalized over the
            draft vocabulary.
        temperature: Temperature of both.
    """
    ids = head.token_ids
    total = weights = torch.zeros((), device=ids.device)
    for depth, step in enumerate(unrolled(head, reading, count)):
        loss, _ = distillation(step.p_logits[:, ids], step.logits, share, temperature)
        total = total + decay**depth * loss
        weights = weights + decay**depth * len(step.logits)
    return total, weights


@torch.inference_mode()
def unrolled_scores(head: Eagle3Head, reading: TargetReading, count: int, temperature: float) -> Scores:
    """Return the acceptance of drafts of `count` tokens on text that the target sampled.

    The drafts are the text's own tokens; see `depth_scores`.
    """
    tokens = reading.rows.tokens
    reached = torch.ones(tokens.shape[0], tokens.shape[1] - 1, device=tokens.device)
    sums = torch.zeros(4, count, dtype=torch.float64, device=tokens.device)
    for depth, step in enumerate(unrolled(head, reading, count)):
        p = (step.p_logits / temperature).softmax(-1)
        q = head.over_vocabulary(step.logits.float() / temperature).softmax(-1)
        everywhere = torch.ones_like(step.tokens, dtype=torch.bool)
        sums[:, depth], ratio = depth_scores(p, q, step.tokens, everywhere, reached[step.where])
        reached[step.where] *= ratio
    return Scores(*sums.cpu())


def masked(head: Eagle3Head, reading: TargetReading, lengths: Tensor) -> tuple[MaskLayout, Tensor]:
    """Draft from every position at mask tokens, in one pass (P-EAGLE).

    Entry t reads the target's state of token t and token t + 1, and predicts token t + 2. A mask at depth d behind
    it reads `mask_hidden` and the mask token, and predicts token t + 2 + d.

    Args:
        head: A head with a mask token.
        reading: What the target says.
        lengths: `[B, T - 2]` int64, the number of masks behind each entry.

    Returns:
        The layout of the entries and masks; the logits of all predictions, `[N, draft vocabulary]`.

    References:
        Hui et al. 2026 (arXiv 2602.01469).
    """
    assert head.mask_hidden is not None
    assert head.shape.mask_token_id is not None
    tokens = reading.rows.tokens[:, 1:-1]
    layout = mask_layout(tokens, masked_wanted(reading.rows), lengths, head.shape.mask_token_id)
    before = head.combine(reading.states[:, : tokens.shape[1]])
    states = torch.cat([before, head.combine(head.mask_hidden).expand(len(before), layout.masks, -1)], dim=1)
    _, normed = head.read(layout.tokens, states, None, layout.visible[:, None], layout.positions)
    return layout, head.lm_head(layout.predictions(normed))


def masked_wanted(rows: Rows) -> Tensor:
    """Return the entries that predict a token of the text, `[B, T - 2]` bool.

    As in decoding, the first token that the target sampled is read, not drafted.
    """
    return rows.mask[:, 1:-1] & rows.mask[:, 2:]


def masked_loss(
    head: Eagle3Head, reading: TargetReading, lengths: Tensor, share: float, temperature: float
) -> Tensor:
    """Return the mean loss of drafts at mask tokens; arguments as `masked` and `unrolled_loss`."""
    layout, logits = masked(head, reading, lengths)
    p_logits = reading.logits[:, 1:-1][layout.wanted][:, head.token_ids]
    return mean_loss(layout, p_logits, logits, share, temperature)


@torch.inference_mode()
def masked_scores(head: Eagle3Head, reading: TargetReading, count: int, temperature: float) -> Scores:
    """Return the acceptance of drafts of `count` tokens from every `count`-th position; see `draft_scores`."""
    rows = reading.rows
    shape = rows.tokens[:, 1:-1].shape
    layout, logits = masked(head, reading, spaced(shape, count, rows.tokens.device) * (count - 1))
    p = (reading.logits[:, 1:-1][layout.wanted] / temperature).softmax(-1)
    q = head.over_vocabulary(logits.float() / temperature).softmax(-1)
    return draft_scores(layout, p, q, rows.tokens[:, 2:][layout.wanted], count)
