"""q in each of its forms: the probability of a draft token, the residual, and the dense distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.interface import Dense, PointMass, Proposal
from specdec_core.interface.proposal import Distribution


def density(q: Distribution, tokens: Tensor) -> Tensor:
    """Return q(x) of each draft token.

    Args:
        q: The distributions the tokens were drawn from.
        tokens: `[B, K]` int64.

    Returns:
        `[B, K]` float.
    """
    width = tokens.shape[1]
    if isinstance(q, PointMass):
        return torch.ones_like(tokens, dtype=torch.float32)
    if isinstance(q, Dense):
        return q.probabilities[:, :width].gather(2, tokens[..., None])[..., 0]
    return (q.probabilities[:, :width] * (q.ids[:, :width] == tokens[..., None])).sum(dim=2)


_NOTHING_LEFT = 2.0**-100
"""The share of p in a residual: lost in rounding, unless nothing else is left."""


def residual(p: Tensor, proposal: Proposal, position: Tensor | int, rejected: Tensor) -> Tensor:
    """Return `max(0, p - q)` at one position of each sequence, not normalized, or p where nothing was rejected.

    Where p equals q up to rounding, nothing is left; the result is then p itself, not normalized either.

    Args:
        p: `[B, V]` float32, the target's distribution at that position.
        proposal: The draft `[B, K]`, with q in any form.
        position: `[B]` int64, the position in the draft; or a number for all.
        rejected: `[B]` float32 or bool; where 0, the result is p.

    Returns:
        `[B, V]` weights.
    """
    q, share = proposal.q, rejected.to(p.dtype)[:, None]
    if isinstance(q, PointMass):
        x = at_positions(proposal.tokens, position)[:, None]
        return p.scatter_reduce(1, x, 1 - share, "prod").add_(p, alpha=_NOTHING_LEFT)
    q_at = at_positions(q.probabilities, position).to(p.dtype)
    if isinstance(q, Dense):
        left = torch.addcmul(p, share, q_at, value=-1)
    else:
        left = p.scatter_add(1, at_positions(q.ids, position), -share * q_at)
    return left.clamp_(min=0).add_(p, alpha=_NOTHING_LEFT)


def at_positions(values: Tensor, positions: Tensor | int) -> Tensor:
    """Return the values `[B, ...]` at one position of each sequence; may be a view.

    Args:
        values: `[B, K, ...]`.
        positions: `[B]` int64, from 0 to K - 1; or a number for all.
    """
    if isinstance(positions, int):
        return values[:, positions]
    if len(positions) == 1 and positions.device.type == "cpu":
        return values[:, int(positions)]  # elsewhere, asking would wait for the device
    index = positions.view(-1, *[1] * (values.dim() - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index)[:, 0]


def dense(q: Distribution, tokens: Tensor, vocab_size: int) -> Tensor:
    """Return q on the whole vocabulary, to combine drafts whose q differ in form.

    Args:
        q: The distributions the tokens were drawn from, in any form.
        tokens: `[B, K]` int64, the draft tokens.
        vocab_size: V.

    Returns:
        `[B, K, V]` float; a view if q is dense.
    """
    width = tokens.shape[1]
    if isinstance(q, Dense):
        return q.probabilities[:, :width]
    zeros = torch.zeros(*tokens.shape, vocab_size, device=tokens.device)
    if isinstance(q, PointMass):
        return zeros.scatter_(2, tokens[..., None], 1.0)
    return zeros.scatter_add_(2, q.ids[:, :width], q.probabilities[:, :width].float())
