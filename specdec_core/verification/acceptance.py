"""Algorithm 1: how many draft tokens are accepted, and which token follows them.

An *accepted* token is a draft token that is committed; a *recovered* token replaces the first one that is
rejected; a *bonus* token follows when all were accepted. Pure functions: tensors in, tensors out. Lossy rules
accept the tokens that they allow, by the same functions of a draft.

References:
    Leviathan et al. 2023, Algorithm 1, section 2.3, appendices A.1 and A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PointMass, Proposal, Sparse
from specdec_core.interface.proposal import Distribution
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.sampling.generators import draw_from_row
from specdec_core.sampling.logits import argmax
from specdec_core.verification.distributions import (
    at_positions,
    count_accepted,
    dense,
    density,
    draw_next,
    rejection,
    residual,
    with_lengths,
)
from specdec_core.verification.lenience import variation, within_greedy_lenience
from specdec_core.verification.tree_acceptance import accept_tree, accept_tree_greedy


def accept(proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
    """Accept or reject each draft token, and draw the token that follows.

    Draft token x at position i is accepted if `r < p(x) / (l q(x))`, up to the first that is not. The next token
    is drawn from `norm(max(0, p - q))` after a rejection and from p otherwise. With l = 1 the result has the
    distribution p (appendix A.1). With l < 1 no token has a probability above p(x) / l:

        where q(x) > p(x), the residual is 0 and P(x) = q(x) * min(1, p(x) / (l q(x))) <= p(x) / l;
        elsewhere x is accepted whenever it is drafted, and P(x) = q + (1 - b) / (1 - b_1) * (p - q) <= p(x), as
        the acceptance probability b = sum_x min(p / l, q) is at least b_1, that of l = 1.

    Args:
        proposal: Draft tokens `[B, K]`, lengths, and q in any form.
        p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
        lenience: `[B]` or `[B, K]` float, l in (0, 1] of each sequence or of each position; None for 1.
        uniforms: `[B, K + 1]` float64: r_1 ... r_K, then the number that draws the next token.

    Returns:
        The result. Whatever lies beyond a sequence's length does not affect it, provided that it is finite.
    """
    # --8<-- [start:accept]
    batch, width = proposal.tokens.shape
    if width == 0:
        token, sound = draw_next(p[:, 0], uniforms[:, 0])
        return AcceptanceResult(torch.zeros_like(token), token, sound)

    proposal = with_lengths(proposal)
    p_x = p.gather(2, proposal.tokens[..., None])[..., 0]
    q_x = None if isinstance(proposal.q, PointMass) else density(proposal.q, proposal.tokens)
    if lenience is not None:
        lenience = lenience if lenience.dim() == 2 else lenience[:, None].expand(batch, width)
        q_x = lenience if q_x is None else lenience * q_x
    r = uniforms[:, :width]
    accepted = count_accepted((r if q_x is None else r * q_x) < p_x, proposal)

    p_next = at_positions(p, accepted)  # [B, V]
    weights = residual(p_next, proposal, accepted.clamp(max=width - 1), rejection(accepted, proposal))
    token, sound = draw_next(weights, uniforms[:, width])
    return AcceptanceResult(accepted, token, sound, None if lenience is None else variation(proposal, p, lenience))
    # --8<-- [end:accept]


def accept_greedy(proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
    """Verify a greedy draft: `accept` with a one-hot p, computed by comparing tokens.

    Whatever q is, a draft token is accepted if it is the argmax and rejected if it is not, and the argmax follows.
    With lenience, `p(x) >= l * max p` is accepted as well (appendix A.5).

    Args:
        proposal: Draft tokens `[B, K]` and lengths.
        scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
        lenience: As for `accept`.
    """
    lenient = None
    if lenience is not None and proposal.tokens.shape[1]:
        lenient = within_greedy_lenience(scores, proposal.tokens, lenience)
    return accept_greedy_allowed(proposal, scores, lenient)


def accept_greedy_allowed(proposal: Proposal, scores: Tensor, passes: Tensor | None) -> AcceptanceResult:
    """Verify a greedy draft that may differ from the argmax; after a rejection, the argmax follows.

    Args:
        proposal: Draft tokens `[B, K]` and lengths.
        scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
        passes: `[B, K]` bool, the draft tokens that are accepted besides the argmax; None for none.

    Returns:
        The result. The deviation is 1 where a token passes that is not the argmax.
    """
    best = argmax(scores)
    matches = proposal.tokens == best[:, : proposal.tokens.shape[1]]
    deviation = None
    if passes is not None:
        other = passes & ~matches
        matches, deviation = matches | other, other.float()
    accepted = count_accepted(matches, proposal)
    at = accepted[:, None]
    largest = scores.gather(2, best[..., None])[..., 0].gather(1, at)[:, 0]
    # The difference is NaN where the largest score is NaN or infinite.
    return AcceptanceResult(accepted, best.gather(1, at)[:, 0], largest - largest == 0, deviation)


def accept_on_cpu(
    q: Distribution, drafts: Sequence[Sequence[int]], p: Tensor, uniforms: Sequence[Sequence[float]]
) -> list[tuple[int, int, bool]]:
    """Accept or reject each draft token, and draw the token that follows: `accept` for a line on a CPU.

    After a forward pass has evicted the processor's caches, each small tensor operation takes 10 to 20 us, and
    `accept` has twenty of them. This has a handful, and looks only at positions up to the first rejection.

    Args:
        q: The distributions that the draft tokens were drawn from, in any form.
        drafts: The draft tokens of each of B sequences.
        p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
        uniforms: `[B][K + 1]`: r_1 ... r_K, then the number that draws the next token.

    Returns:
        The fields of `AcceptanceResult` for each sequence.
    """
    of_q = None if isinstance(q, PointMass) else q.probabilities.float().numpy()
    ids = q.ids.numpy() if isinstance(q, Sparse) else None
    made = []
    for row, (draft, r, p_row) in enumerate(zip(drafts, uniforms, p.numpy(), strict=True)):
        n = 0
        for x in draft:
            if of_q is None:
                q_x = 1.0
            elif ids is None:
                q_x = of_q.item(row, n, x)
            else:
                q_x = float(of_q[row, n, ids[row, n] == x].sum())
            if not r[n] * q_x < p_row.item(n, x):  # in float64, as in `accept`; numpy would round to float32
                break
            n += 1
        weights = p_row[n]
        if n < len(draft):
            if of_q is None:
                weights = weights.copy()
                weights[draft[n]] -= 1
            elif ids is None:
                weights = weights - of_q[row, n]
            else:
                weights = weights.copy()
                np.subtract.at(weights, ids[row, n], of_q[row, n])  # padding repeats ids
            np.maximum(weights, 0, out=weights)
        token, total = draw_from_row(weights, r[-1])
        if total == 0:  # p equals q up to rounding
            token, total = draw_from_row(p_row[n], r[-1])
        made.append((n, token, total > 0))
    return made


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


class SpeculativeSampling(AcceptanceRule):
    """Algorithm 1, with lenience as in appendix A.5.

    Args:
        config: Its settings, of which there are none.
    """

    trees = True

    def __init__(self, config: TokenRuleConfig | None = None) -> None:
        super().__init__(config or TokenRuleConfig())

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """Verify by `accept`, a tree by `accept_tree`."""
        if proposal.parents is not None:
            return accept_tree(proposal, p, uniforms)
        if p.is_cpu and lenience is None:
            drafts = [draft[:n] for draft, n in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]
            made = accept_on_cpu(proposal.q, drafts, p, uniforms.tolist())
            return AcceptanceResult(*map(torch.tensor, zip(*made, strict=True)))
        return accept(proposal, p, lenience, uniforms)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Verify by `accept_greedy`, a tree by `accept_tree_greedy`."""
        if proposal.parents is not None:
            return accept_tree_greedy(proposal, scores)
        return accept_greedy(proposal, scores, lenience)
