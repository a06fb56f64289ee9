"""Lenience (appendix A.5): its acceptance, and its distance from the target's distribution.

`specdec_core.verification.acceptance.accept` applies it to a draft.

A draft token x is accepted with probability min(1, p(x) / (l q(x))), so a verified position accepts with
probability b(l) = sum_x min(p / l, q). With the residual norm(max(0, p - q)), which does not depend on l, the
emitted token has the distribution P with

    TV(P, p) = b(l) - b(1),

the acceptance gained: mass exceeds p only where q > p, by min(p / l, q) - p. No rule with this acceptance
probability departs less, since b <= sum_x min(P, q) = 1 - TV(P, q) <= 1 - TV(p, q) + TV(P, p) = b(1) + TV(P, p).
The residual norm(max(0, p - l q)) also puts mass where q > p > l q, and departs more for the same acceptance.

Over a text the variations add up: if lenience does not depend on the draft it applies to, the distribution of the
whole text is within the expected sum over the verified positions.

References:
    Leviathan et al. 2023, appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.interface import PointMass, Proposal
from specdec_core.verification.distributions import dense


def variation(proposal: Proposal, p: Tensor, lenience: Tensor) -> Tensor:
    """Return the total variation from p that lenience costs at each position of a draft, if it is verified.

    Args:
        proposal: Draft tokens `[B, K]` and q in any form.
        p: `[B, K, V]` or longer in K, float32, the target's adjusted distributions.
        lenience: `[B, K]` float, l in (0, 1].

    Returns:
        `[B, K]` float: sum_x min(p / l, q) - min(p, q), 0 where l = 1.
    """
    width = proposal.tokens.shape[1]
    p = p[:, :width]
    lenience = above_zero(lenience)
    if isinstance(proposal.q, PointMass):
        p_x = p.gather(2, proposal.tokens[..., None])[..., 0]
        return (p_x / lenience).clamp(max=1) - p_x
    q = dense(proposal.q, proposal.tokens, p.shape[2])
    return (torch.minimum(p / lenience[..., None], q) - torch.minimum(p, q)).sum(dim=2)


def within_greedy_lenience(scores: Tensor, tokens: Tensor, lenience: Tensor) -> Tensor:
    """Return the draft tokens that greedy decoding with lenience accepts: `p(x) >= l * max p`.

    For greedy decoding, lenience acts before the argmax (appendix A.5; the paper prints the inequality the other
    way round). p is the softmax of the scores, whose normalizer cancels.

    Args:
        scores: `[B, K, V]` or longer in K, the target's scores after its logits processors.
        tokens: `[B, K]` int64.
        lenience: `[B]` or `[B, K]` float in (0, 1]. At 1 the result is False: the argmax itself decides, ties
            included.

    Returns:
        `[B, K]` bool.
    """
    scores = scores[:, : tokens.shape[1]]
    x = scores.gather(2, tokens[..., None])[..., 0]
    l_each = above_zero(lenience if lenience.dim() == 2 else lenience[:, None])
    return (l_each < 1) & (x >= scores.amax(dim=2) + l_each.log())


def above_zero(lenience: Tensor) -> Tensor:
    """Return lenience in which no value is 0: a float64 above 0 may round to 0 in float32, and accept anything."""
    return lenience.clamp(min=torch.finfo(lenience.dtype).tiny)
