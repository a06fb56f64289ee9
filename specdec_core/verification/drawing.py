"""Shared parts of acceptance rules: counting accepted tokens, and drawing the token that follows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.interface import Proposal
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.generators import invert


def with_lengths(proposal: Proposal) -> Proposal:
    """Return a draft whose lengths, if they differ, are on the device: else each that needs them copies them."""
    if not ragged(proposal):
        return proposal
    lengths = lengths_of(proposal)
    assert isinstance(lengths, Tensor)
    return proposal.made_by_core(replace(proposal.origin, lengths=lengths))


def lengths_of(proposal: Proposal) -> Tensor | int:
    """Return the length of each draft, `[B]` int64 on the device of the tokens; a number if all have the same."""
    if not ragged(proposal):
        return proposal.tokens.shape[1]
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
    return proposal.origin.lengths is not None or min(proposal.lengths, default=0) < proposal.tokens.shape[1]


def count_accepted(verdicts: Tensor, proposal: Proposal) -> Tensor:
    """Return the number of accepted draft tokens of each sequence, up to the first that is not.

    Args:
        verdicts: `[B, K]` bool, whether each draft token passes; ignored beyond a sequence's length.
        proposal: The draft.

    Returns:
        `[B]` int64.
    """
    accepted = verdicts.cumprod(dim=1).sum(dim=1)
    lengths = lengths_of(proposal)
    return accepted if isinstance(lengths, int) else torch.minimum(accepted, lengths)


def rejection(accepted: Tensor, proposal: Proposal) -> Tensor:
    """Return 1 for each sequence in which a draft token was rejected, and 0 for the others, `[B]` float32.

    Args:
        accepted: `[B]` int64, the number of accepted draft tokens.
        proposal: The draft.
    """
    found = torch.empty(accepted.shape, device=accepted.device)
    return torch.lt(accepted, lengths_of(proposal), out=found)  # one launch, where a conversion is another


def draw_next(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the token that follows the accepted ones.

    Args:
        weights: `[B, V]` float, not negative and not normalized: what the token is drawn from.
        uniforms: `[B]` float64, the numbers that draw.

    Returns:
        The token `[B]` int64, and `[B]` bool: False where it could not be drawn, because the weights hold NaN or
        are all 0. The token then means nothing, and may be V.
    """
    token, total = invert(weights, uniforms)
    return token, total > 0
