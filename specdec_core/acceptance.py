"""Algorithm 1: how many draft tokens are kept, and which token follows them.

Words: an *accepted* token is a draft token that is kept; a *recovered* token replaces the first one that is
not; a *bonus* token follows when all were kept. No model, no cache, no state: tensors in, tensors out.

References:
    Leviathan et al. 2023, Algorithm 1, section 2.3, appendices A.1 and A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.border import Dense, Distribution, Overlay, PointMass, Proposal
from specdec_core.randomness import draw_with_total
from specdec_core.sampling import top


@dataclass(frozen=True)
class Verdict:
    """What Algorithm 1 says of one step.

    Attributes:
        accepted: `[B]` int64, n: how many draft tokens of each row are kept.
        token: `[B]` int64, the recovered token (n < length) or the bonus token (n = length).
        sound: `[B]` bool, whether the token was drawn from a distribution, and not from NaN.
        deviation: `[B, K]` float, the total variation from p that lenience costs at each position if it is
            judged; None where l = 1.
    """

    accepted: Tensor
    token: Tensor
    sound: Tensor
    deviation: Tensor | None = None


def accept(
    proposal: Proposal, p: Tensor, lenience: Tensor, uniforms: Tensor, granted: Tensor | None = None
) -> Verdict:
    """Accept or reject a draft, and draw the token that follows.

    Draft token x at position i is kept when `r < p(x) / (l q(x))`, up to the first that is not. The next token
    is drawn from `norm(max(0, p - q))` after a rejection and from p otherwise. With l = 1 the result has the
    distribution p (appendix A.1); with l < 1 no token has a probability above p(x) / l:

        where q(x) > p(x), the residual is 0 and P(x) = q(x) * min(1, p(x) / (l q(x))) <= p(x) / l;
        elsewhere x is kept whenever it is drafted, and P(x) = q + (1 - b) / (1 - b_1) * (p - q) <= p(x), as the
        acceptance probability b = sum_x min(p / l, q) is at least b_1, that of l = 1.

    `specdec_core.lenience` says why this residual, and not that of p - l q, deviates least from p.

    Args:
        proposal: Draft tokens `[B, K]`, lengths, and q in any of its forms.
        p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
        lenience: `[B]` or `[B, K]` float, l in (0, 1] of each row, or of each position of its draft.
        uniforms: `[B, K + 1]` float64: r_1 ... r_K, then the number that draws the next token.
        granted: `[B, K]` bool, tokens that are kept without the comparison (lenience for argmax), or None.

    Returns:
        The verdict. What lies beyond a row's length has no influence on it, as long as it is finite.
    """
    batch, width = proposal.tokens.shape
    if width == 0:
        token, total = draw_with_total(p[:, 0], uniforms[:, 0])
        return Verdict(torch.zeros_like(token), token, total > 0)

    p_x = p[:, :width].gather(2, proposal.tokens[..., None])[..., 0]
    l_each = lenience if lenience.dim() == 2 else lenience[:, None]
    keep = uniforms[:, :width] * (l_each * density(proposal.q, proposal.tokens)) < p_x
    accepted = _count(keep if granted is None else keep | granted, proposal.lengths)
    rejected = accepted < torch.tensor(proposal.lengths, device=p.device)

    rows = torch.arange(batch, device=p.device)
    at = accepted.clamp(max=width - 1)
    x = proposal.tokens[rows, at]
    p_next = p[rows, accepted]  # [B, V]
    token, total = draw_with_total(residual(p_next, proposal.q, x, at, rejected), uniforms[:, width])
    # Nothing is left where p and q are equal as far as floats can tell; then x itself is a draw from p. But an x
    # that p rules out is none, however small q(x) is: the likeliest token stands for it.
    possible = p_next.gather(1, x[:, None])[:, 0] > 0
    return Verdict(accepted, torch.where(total == 0, torch.where(possible, x, top(p_next)), token), total >= 0)


def accept_argmax(proposal: Proposal, scores: Tensor, granted: Tensor | None = None) -> Verdict:
    """Do what `accept` does where every p is one-hot, by comparing tokens.

    Whatever q is, a draft token is kept when it is the argmax and refused when it is not, and what follows is
    the argmax.

    Args:
        proposal: Draft tokens `[B, K]` and lengths.
        scores: `[B, K + 1, V]`, the target's scores after its processors.
        granted: `[B, K]` bool, tokens that are kept without the comparison (lenience), or None.
    """
    width = proposal.tokens.shape[1]
    best = top(scores)
    keep = proposal.tokens == best[:, :width]
    accepted = _count(keep if granted is None else keep | granted, proposal.lengths)
    token = best.gather(1, accepted[:, None])
    largest = scores[torch.arange(len(accepted), device=scores.device), accepted].gather(1, token)
    return Verdict(accepted, token[:, 0], largest[:, 0].isfinite())


def _count(keep: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return how many tokens are kept from the left, `[B]` int64."""
    width = keep.shape[1]
    if min(lengths) < width:
        limits = torch.tensor(lengths, device=keep.device)
        keep = keep & (torch.arange(width, device=keep.device) < limits[:, None])
    return keep.cumprod(dim=1).sum(dim=1)


def density(q: Distribution, tokens: Tensor) -> Tensor:
    """Return q(x) of each draft token.

    Args:
        q: The distributions the tokens were drawn from.
        tokens: `[B, K]` int64.

    Returns:
        `[B, K]` float.
    """
    if isinstance(q, PointMass):
        return torch.ones_like(tokens, dtype=torch.float32)
    if isinstance(q, Dense):
        return q.probabilities[:, : tokens.shape[1]].gather(2, tokens[..., None])[..., 0]
    width = tokens.shape[1]
    if isinstance(q, Overlay):
        return _overlay_density(q, tokens, width)
    return (q.probabilities[:, :width] * (q.ids[:, :width] == tokens[..., None])).sum(dim=2)


def _overlay_density(q: Overlay, tokens: Tensor, width: int) -> Tensor:
    shared = q.scale[:, :width] * q.background[tokens]
    places = q.ids.shape[2]
    if not places:
        return shared
    ids, x = q.ids[:, :width].contiguous(), tokens[..., None]
    place = torch.searchsorted(ids, x.to(ids.dtype)).clamp_(max=places - 1)
    own = q.probabilities[:, :width].gather(2, place)[..., 0]
    return torch.where((ids.gather(2, place) == x)[..., 0], own, shared)


def residual(p: Tensor, q: Distribution, token: Tensor, position: Tensor, share: Tensor) -> Tensor:
    """Return `max(0, p - share * q)`, not normalised, at one position of each row.

    Args:
        p: `[B, V]`, the target's distribution at that position.
        q: The distributions of the whole draft.
        token: `[B]` int64, the draft token at that position.
        position: `[B]` int64, which position of the draft it is.
        share: `[B]` float or bool, the factor on q; where it is 0, p comes back.

    Returns:
        `[B, V]` weights.
    """
    share = share.to(p.dtype)[:, None]
    if isinstance(q, PointMass):
        return p.scatter_add(1, token[:, None], -share).clamp_(min=0)
    rows = torch.arange(p.shape[0], device=p.device)
    if isinstance(q, Overlay):
        rest = torch.addcmul(p, share * q.scale[rows, position][:, None], q.background, value=-1)
        ids = q.ids[rows, position].long()
        own = q.probabilities[rows, position].to(p.dtype)
        return rest.scatter_(1, ids, p.gather(1, ids).addcmul_(share, own, value=-1)).clamp_(min=0)
    q_at = q.probabilities[rows, position].to(p.dtype)
    if isinstance(q, Dense):
        return torch.addcmul(p, share, q_at, value=-1).clamp_(min=0)
    return p.scatter_add(1, q.ids[rows, position], -share * q_at).clamp_(min=0)


def dense(q: Distribution, tokens: Tensor, vocab_size: int) -> Tensor:
    """Write q out on the whole vocabulary, for who combines drafts whose q differ in form.

    Args:
        q: The distributions the tokens were drawn from, in any form.
        tokens: `[B, K]` int64, the draft tokens.
        vocab_size: V.

    Returns:
        `[B, K, V]` float; of a dense q the very tensor.
    """
    width = tokens.shape[1]
    if isinstance(q, Dense):
        return q.probabilities[:, :width]
    if isinstance(q, Overlay):
        shared = q.scale[:, :width, None] * q.background
        return shared.scatter_(2, q.ids[:, :width].long(), q.probabilities[:, :width])
    zeros = torch.zeros(*tokens.shape, vocab_size, device=tokens.device)
    if isinstance(q, PointMass):
        return zeros.scatter_(2, tokens[..., None], 1.0)
    return zeros.scatter_add_(2, q.ids[:, :width], q.probabilities[:, :width].float())
