"""Lenience (appendix A.5): what it accepts, and how far it leads away from the target's distribution.

A draft token x is kept with probability min(1, p(x) / (l q(x))), so at a position that is judged a token is kept
with probability b(l) = sum_x min(p / l, q). With the residual norm(max(0, p - q)), which does not depend on l, the
token that comes out has the distribution P with

    TV(P, p) = b(l) - b(1),

the acceptance gained: mass is above p only where q > p, by min(p / l, q) - p. No way of keeping drafts with this
probability deviates less, since b <= sum_x min(P, q) = 1 - TV(P, q) <= 1 - TV(p, q) + TV(P, p) = b(1) + TV(P, p).
The residual norm(max(0, p - l q)) puts mass where q > p > l q as well, and deviates more for the same acceptance.

Over a text the variations add up: with lenience that does not depend on the draft it judges, the distribution of
the whole text is within the expected sum over the judged positions.

References:
    Leviathan et al. 2023, appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.acceptance import dense
from specdec_core.border import PointMass, Proposal
from specdec_core.sampling import top


def lenient_acceptance(p: Tensor, q: Tensor, lenience: Tensor | float) -> Tensor:
    """Return the probability that a token drawn from q is kept: sum_x min(p / l, q).

    Args:
        p: `[..., V]` float, the target's distributions.
        q: `[..., V]` float, what the draft is drawn from.
        lenience: l in (0, 1], a number or one that fits `[...]`.

    Returns:
        `[...]` float, at most 1.
    """
    share = lenience[..., None] if isinstance(lenience, Tensor) else lenience
    return torch.minimum(p / share, q).sum(dim=-1)


def variation(proposal: Proposal, p: Tensor, lenience: Tensor) -> Tensor:
    """Return the total variation from p that lenience costs at each position of a draft, if it is judged.

    Args:
        proposal: Draft tokens `[B, K]` and q in any form.
        p: `[B, K, V]` or longer in K, float32, the target's adjusted distributions.
        lenience: `[B, K]` float, l in (0, 1].

    Returns:
        `[B, K]` float: sum_x min(p / l, q) - min(p, q), 0 where l = 1.
    """
    width = proposal.tokens.shape[1]
    p = p[:, :width]
    lenience = lenience.clamp(min=torch.finfo(lenience.dtype).tiny)  # a float64 above 0 may be none in float32
    if isinstance(proposal.q, PointMass):
        p_x = p.gather(2, proposal.tokens[..., None])[..., 0]
        return (p_x / lenience).clamp(max=1) - p_x
    q = dense(proposal.q, proposal.tokens, p.shape[2])
    return (torch.minimum(p / lenience[..., None], q) - torch.minimum(p, q)).sum(dim=2)


def variation_of_argmax(tokens: Tensor, scores: Tensor) -> Tensor:
    """Return what keeping each draft token costs where p is one-hot: 1 where it is not the argmax.

    Args:
        tokens: `[B, K]` int64.
        scores: `[B, K, V]` or longer in K, the target's scores after its processors.

    Returns:
        `[B, K]` float.
    """
    return (tokens != top(scores[:, : tokens.shape[1]])).float()


def granted_by_argmax_lenience(scores: Tensor, tokens: Tensor, lenience: Tensor) -> Tensor:
    """Return which draft tokens argmax decoding with lenience keeps: `p(x) >= l * max p`.

    For argmax, lenience acts before standardisation (appendix A.5; the paper prints the inequality the other
    way round). p is the softmax of the scores, whose normaliser cancels.

    Args:
        scores: `[B, K, V]` or longer in K, the target's scores after its processors.
        tokens: `[B, K]` int64.
        lenience: `[B]` or `[B, K]` float in (0, 1]. At 1 nothing is granted: argmax itself decides, ties included.

    Returns:
        `[B, K]` bool.
    """
    scores = scores[:, : tokens.shape[1]]
    x = scores.gather(2, tokens[..., None])[..., 0]
    l_each = lenience if lenience.dim() == 2 else lenience[:, None]
    # A float64 above 0 may be none in float32, and would keep what the processors ruled out.
    l_each = l_each.clamp(min=torch.finfo(l_each.dtype).tiny)
    return (l_each < 1) & (x >= scores.amax(dim=2) + l_each.log())
