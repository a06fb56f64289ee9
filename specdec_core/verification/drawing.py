"""Shared parts of acceptance rules: counting accepted tokens, and drawing the token that follows."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.interface import Proposal
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.generators import draw_with_total
from specdec_core.sampling.logits import argmax


def lengths_of(proposal: Proposal) -> Tensor:
    """Return the length of each draft, `[B]` int64 on the device of the tokens."""
    known = proposal.origin.lengths
    return uploaded(proposal.lengths, proposal.tokens.device) if known is None else known


def drafted(proposal: Proposal) -> Tensor:
    """Return `[B, K]` bool, the positions within each draft, on the device of the tokens."""
    tokens = proposal.tokens
    if proposal.origin.lengths is not None:
        return torch.arange(tokens.shape[1], device=tokens.device) < proposal.origin.lengths[:, None]
    return moved(torch.arange(tokens.shape[1]) < torch.tensor(proposal.lengths)[:, None], tokens.device)


def ragged(proposal: Proposal) -> bool:
    """Return whether drafts differ in length, or may in another replay of a captured step."""
    return proposal.origin.lengths is not None or min(proposal.lengths) < proposal.tokens.shape[1]


def count_accepted(verdicts: Tensor, proposal: Proposal) -> Tensor:
    """Return the number of accepted draft tokens of each sequence, up to the first that is not.

    Args:
        verdicts: `[B, K]` bool, whether each draft token passes; ignored beyond a sequence's length.
        proposal: The draft.

    Returns:
        `[B]` int64.
    """
    if ragged(proposal):
        verdicts = verdicts & drafted(proposal)
    return verdicts.cumprod(dim=1).sum(dim=1)


def draw_next(weights: Tensor, p: Tensor, drafted: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the token that follows the accepted ones.

    Args:
        weights: `[B, V]` float, not negative and not normalized: what the token is drawn from.
        p: `[B, V]` float32, the target's distribution after the accepted tokens.
        drafted: `[B]` int64, the draft token there; any where all are accepted.
        uniforms: `[B]` float64, the numbers that draw.

    Returns:
        The token `[B]` int64, and `[B]` bool: False where it could not be drawn because the weights hold NaN.
    """
    token, total = draw_with_total(weights, uniforms)
    if token.device.type == "cpu" and total.all():
        return token, total >= 0  # nearly always; elsewhere, asking would wait for the device
    # A residual is 0 where p equals q up to rounding; the draft token itself is then a draw from p. If p excludes
    # it, however small its q is, the most probable token replaces it.
    fallback = torch.where(p.gather(1, drafted[:, None])[:, 0] > 0, drafted, argmax(p))
    return torch.where(total == 0, fallback, token), total >= 0
