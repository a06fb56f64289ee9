"""Shared parts of acceptance rules: counting accepted tokens, and drawing the token that follows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.interface import Proposal
from specdec_core.models.device import uploaded
from specdec_core.sampling.generators import draw_with_total
from specdec_core.sampling.logits import argmax
from specdec_core.verification.distributions import at_positions


def count_accepted(verdicts: Tensor, lengths: Sequence[int], limits: Tensor | None = None) -> Tensor:
    """Return the number of accepted draft tokens of each sequence, up to the first that is not.

    Args:
        verdicts: `[B, K]` bool, whether each draft token passes; ignored beyond a sequence's length.
        lengths: B numbers from 0 to K.
        limits: `[B]` int64, the same lengths on the device, if they are there already.

    Returns:
        `[B]` int64.
    """
    width = verdicts.shape[1]
    if min(lengths) < width:
        limits = uploaded(lengths, verdicts.device) if limits is None else limits
        verdicts = verdicts & (torch.arange(width, device=verdicts.device) < limits[:, None])
    return verdicts.cumprod(dim=1).sum(dim=1)


def draw_next(
    weights: Tensor, proposal: Proposal, p: Tensor, accepted: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw the token that follows the accepted ones.

    Args:
        weights: `[B, V]` float, not negative and not normalised: what the token is drawn from.
        proposal: The draft `[B, K]`, K at least 1.
        p: `[B, K + 1, V]` float32, the target's distributions.
        accepted: `[B]` int64, how many draft tokens of each sequence are accepted.
        uniforms: `[B, K + 1]` float64; the last column draws.

    Returns:
        The token `[B]` int64, and `[B]` bool: False where it could not be drawn because the weights hold NaN.
    """
    width = proposal.tokens.shape[1]
    token, total = draw_with_total(weights, uniforms[:, width])
    if token.device.type == "cpu" and total.all():
        return token, total >= 0  # nearly always; elsewhere, asking would wait for the device
    # A residual is 0 where p equals q up to rounding; the draft token x itself is then a draw from p. If p
    # excludes x, however small q(x) is, the most probable token replaces it.
    x = at_positions(proposal.tokens, accepted.clamp(max=width - 1))
    p_next = at_positions(p, accepted)
    fallback = torch.where(p_next.gather(1, x[:, None])[:, 0] > 0, x, argmax(p_next))
    return torch.where(total == 0, fallback, token), total >= 0
