"""Accepting a given set of draft tokens, sampled or greedy: the shared part of lossy rules."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, PointMass, Proposal, Sparse
from specdec_core.sampling.logits import argmax
from specdec_core.verification.distributions import (
    at_positions,
    count_accepted,
    dense,
    draw_next,
    rejection,
    residual,
    with_lengths,
)


def accept_allowed(proposal: Proposal, p: Tensor, allowed: Tensor, uniforms: Tensor) -> AcceptanceResult:
    """Accept the draft tokens that are allowed, and deviate from p as little as this permits.

    With a(x) = 1 for allowed tokens and 0 for others, the token after a rejection is drawn from
    norm(max(0, p - a q)). Then the token at a verified position has the distribution P with

        TV(P, p) = E = sum_x max(0, a q - p),

    and no choice of the residual R deviates less. Let b = sum a q be the probability of acceptance and
    Z = sum max(0, p - a q), so that 1 - b = sum (p - a q) = Z - E. Where a q > p, R is 0 and P = a q exceeds p by
    a q - p, which sums to E. Elsewhere P = a q + (1 - E / Z) (p - a q) <= p. So TV(P, p), the sum of what exceeds
    p, is E. Any R gives P >= a q, hence TV(P, p) >= E.

    Over a text the variations add up, as those of lenience do: `allowed` must not depend on the draft token it
    applies to.

    Args:
        proposal: Draft tokens `[B, K]`, lengths, and q in any form; K is at least 1.
        p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
        allowed: `[B, K, V]` bool, the tokens that are accepted at each position.
        uniforms: `[B, K + 1]` float64; only the number that draws the next token is used.

    Returns:
        The result, with the deviation E of each position.
    """
    proposal = with_lengths(proposal)
    width = proposal.tokens.shape[1]
    passes = allowed.gather(2, proposal.tokens[..., None])[..., 0]
    accepted = count_accepted(passes, proposal)
    checked = accepted.clamp(max=width - 1)
    p_next = at_positions(p, accepted)
    # max(0, p - a q) is max(0, p - q) where a token is allowed, and p elsewhere.
    less = residual(p_next, proposal, checked, rejection(accepted, proposal))
    weights = torch.where(at_positions(allowed, checked), less, p_next)
    token, sound = draw_next(weights, uniforms[:, width])
    # NaN in p is not the rule's concern: decoding reports it where a text gets there.
    deviation = _excess(proposal, p[:, :width], allowed).nan_to_num(nan=0.0)
    return AcceptanceResult(accepted, token, sound, deviation)


def accept_greedy_allowed(proposal: Proposal, scores: Tensor, passes: Tensor) -> AcceptanceResult:
    """Verify a greedy draft that may differ from the argmax; after a rejection, the argmax follows.

    Args:
        proposal: Draft tokens `[B, K]` and lengths; K is at least 1.
        scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
        passes: `[B, K]` bool, the draft tokens that are accepted besides the argmax.

    Returns:
        The result. The deviation is 1 where a token passes that is not the argmax.
    """
    best = argmax(scores)
    matches = proposal.tokens == best[:, : proposal.tokens.shape[1]]
    other = passes & ~matches
    accepted = count_accepted(matches | other, proposal)
    rows = torch.arange(len(accepted), device=accepted.device)
    token = best[rows, accepted]
    return AcceptanceResult(accepted, token, scores[rows, accepted, token].isfinite(), other.float())


def _excess(proposal: Proposal, p: Tensor, allowed: Tensor) -> Tensor:
    """Return sum_x max(0, a q - p) at each position, `[B, K]`."""
    if isinstance(proposal.q, PointMass):
        x = proposal.tokens[..., None]
        return ((1 - p.gather(2, x)) * allowed.gather(2, x))[..., 0].clamp(min=0)
    if isinstance(proposal.q, Sparse):
        width = proposal.tokens.shape[1]
        ids, q = proposal.q.ids[:, :width], proposal.q.probabilities[:, :width]
        return ((q - p.gather(2, ids)).clamp(min=0) * allowed.gather(2, ids)).sum(dim=2)
    q = dense(proposal.q, proposal.tokens, p.shape[2])
    return ((q - p).clamp(min=0) * allowed).sum(dim=2)
