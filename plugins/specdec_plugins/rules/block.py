"""Block verification: a draft is verified as a whole, not token by token."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PointMass, Proposal, Sparse
from specdec_core.models import uploaded
from specdec_core.verification import accept, accept_greedy, dense, density, draw_next, residual


class BlockRule(AcceptanceRule):
    """Verifies a draft jointly: in expectation no fewer tokens than Algorithm 1, with the same distribution.

    Let c_0 = 1 and c_i = min(1, c_{i-1} p(x_i) / q(x_i)) along the draft x_1 ... x_gamma. Position i < gamma
    passes with probability

        h_i = n_i / (n_i + 1 - c_i),  n_i = sum_x max(0, c_i p(x) - q(x)),

    where p and q are the distributions after x_i; position gamma passes with h_gamma = c_gamma, all independently.
    The last position tau that passes counts: x_1 ... x_tau are accepted, whatever was decided before tau. The next
    token is drawn from norm(max(0, c_tau p - q)), and from p if tau = gamma.

    **Why it is exact.** Let A_i be the probability that tau >= i, given x_1 ... x_i. It is c_i: at the end by
    definition, and before it because A_i = S + (1 - S) h_i with S = sum_x q(x) A_{i+1}(x) = sum_x min(c_i p, q),
    for which c_i - S = n_i and 1 - S = n_i + 1 - c_i. So a prefix that is drafted with probability Q is accepted
    with Q c_i. After it the token y follows as an accepted one with probability Q min(c_i p(y), q(y)), and as a
    drawn one with Q (1 - S) h_i norm(max(0, c_i p - q))(y) = Q max(0, c_i p(y) - q(y)). Together they are
    Q c_i p(y): given the accepted prefix, the next token has the distribution p. That is true token by token, so
    it is true over any number of steps, and for drafts whose length depends on the tokens drafted.

    **Why it accepts more.** For Algorithm 1 the probability that tau >= i is the product of the min(1, p / q),
    which is at most c_i.

    **Given the text.** Let r_i = q(y_i) / p(y_i) along the text y_1 ... y_gamma, and R_i = r_1 ... r_i. The prefix
    y_1 ... y_i is drafted and accepted with probability Q c_i, which is R_i c_i times the probability of the text.
    So tau >= i, given the text, with probability R_i c_i = min(R_i, R_{i-1} c_{i-1}) = min(1, R_1, ... R_i). For
    Algorithm 1 it is the product of the min(1, r).

    References:
        Sun et al., Block Verification Accelerates Speculative Decoding, Theorems 1 and 2 (arXiv 2403.10444). The
        proof above is by induction from the end of the draft; the paper compares distributions of whole blocks.
    """

    def acceptance_given_text(
        self,
        ratio: NDArray[np.float64],
        least: NDArray[np.float64] | None,  # noqa: ARG002
    ) -> NDArray[np.float64]:
        """Return R_i c_i / (R_{i-1} c_{i-1}) = min(1, r_i / c_{i-1}), with c_i = min(1, c_{i-1} / r_i)."""
        odds = np.empty_like(ratio)
        kept = np.ones(ratio.shape[:-1])
        for position in range(ratio.shape[-1]):
            own = ratio[..., position]
            odds[..., position] = np.minimum(own, kept) / kept
            kept = np.maximum(kept / np.maximum(own, kept), np.finfo(np.float64).tiny)
        return odds

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Verify a draft where the target samples."""
        batch, width = proposal.tokens.shape
        if not width:
            return accept(proposal, p, None, uniforms)
        kept = _kept(proposal, p)
        lengths = uploaded(proposal.lengths, p.device)[:, None]
        positions = torch.arange(width + 1, device=p.device)
        odds = torch.where(positions == lengths, kept, _odds(proposal, p, kept))[:, 1:]
        passes = (uniforms[:, :width] < odds) & (positions[1:] <= lengths)
        accepted = (passes * positions[1:]).amax(dim=1)  # the last position that passes; 0 if none does

        rows = torch.arange(batch, device=p.device)
        scaled = p[rows, accepted] * kept.gather(1, accepted[:, None]).to(p.dtype)
        weights = residual(scaled, proposal, accepted.clamp(max=width - 1), accepted < lengths[:, 0])
        token, sound = draw_next(weights, uniforms[:, width])
        return AcceptanceResult(accepted, token, sound)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft: with a one-hot p, this is Algorithm 1."""
        return accept_greedy(proposal, scores, None)


def _kept(proposal: Proposal, p: Tensor) -> Tensor:
    """Return c_0 ... c_K, `[B, K + 1]` float64."""
    p_x = p[:, : proposal.tokens.shape[1]].gather(2, proposal.tokens[..., None])[..., 0].double()
    ratio = p_x / density(proposal.q, proposal.tokens).double().clamp(min=torch.finfo(torch.float32).tiny)
    kept = [torch.ones_like(ratio[:, 0])]
    for one in ratio.nan_to_num(nan=0.0).unbind(dim=1):
        kept.append((kept[-1] * one).clamp(max=1))
    return torch.stack(kept, dim=1)


def _odds(proposal: Proposal, p: Tensor, kept: Tensor) -> Tensor:
    """Return h_0 ... h_K of a draft of K tokens, `[B, K + 1]` float64."""
    gain = _gain(proposal, p[:, :-1], kept[:, :-1])
    inner = gain / (gain + 1 - kept[:, :-1])
    # 0 / 0 where p = q and c = 1, so that the next position passes anyway. NaN where p is NaN: c, as at the end of
    # a draft, so that the text gets there and decoding reports it.
    inner = torch.where(inner.isnan(), kept[:, :-1], inner)
    return torch.cat([inner, kept[:, -1:]], dim=1)


def _gain(proposal: Proposal, p: Tensor, kept: Tensor) -> Tensor:
    """Return n_i = sum_x max(0, c_i p(x) - q(x)) after each position before the last, `[B, K]` float64."""
    if isinstance(proposal.q, PointMass):
        p_x = p.gather(2, proposal.tokens[..., None])[..., 0].double()
        return kept * (1 - p_x).clamp(min=0)
    if isinstance(proposal.q, Sparse):
        width = proposal.tokens.shape[1]
        ids, q = proposal.q.ids[:, :width], proposal.q.probabilities[:, :width].double()
        both = (kept[..., None] * p.gather(2, ids).double()).minimum(q).sum(dim=2)
        return (kept - both).clamp(min=0)
    q = dense(proposal.q, proposal.tokens, p.shape[2])
    return (p * kept[..., None].to(p.dtype) - q).clamp(min=0).sum(dim=2).double()
