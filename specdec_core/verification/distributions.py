"""q in each of its forms, and what rules share: counting accepted tokens, drawing the one that follows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.interface import Dense, PointMass, Proposal
from specdec_core.interface.proposal import Distribution
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.generators import invert


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


def possible(proposal: Proposal) -> Tensor | None:
    """Return whether q gives a probability above 0 to each draft token: not where it is NaN.

    Args:
        proposal: The draft.

    Returns:
        `[B, K]` bool; None if the CPU can tell that it does everywhere.
    """
    if isinstance(proposal.q, Dense) and proposal.tokens.is_cpu:
        # A handful of numbers, and nearly always fine; elsewhere than on a CPU, asking would wait for the device.
        q, rows = proposal.q.probabilities.numpy(), zip(proposal.tokens.tolist(), proposal.lengths, strict=True)
        if all(q.item(b, n, x) > 0 for b, (row, count) in enumerate(rows) for n, x in enumerate(row[:count])):
            return None
    return density(proposal.q, proposal.tokens) > 0


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
    if len(positions) == 1 and positions.is_cpu:
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
