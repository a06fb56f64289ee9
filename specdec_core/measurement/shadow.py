"""The shadow rule: judges every draft and keeps none, so that the text is the target's alone.

At every token that the target generates, a drafter is asked for a draft, and the target computes p at each of its
positions, as in a speculative step. Instead of tossing the coins of Algorithm 1, the rule notes their odds.

References:
    Leviathan et al. 2023, Corollary 3.6, section 4.2 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.acceptance import Verdict, dense, density
from specdec_core.border import PointMass, Proposal
from specdec_core.decoding.rules import Case
from specdec_core.lenience import granted_by_argmax_lenience, lenient_acceptance
from specdec_core.randomness import draw_with_total
from specdec_core.sampling import top


class Shadow:
    """A rule that accepts nothing, draws the next token from p, and notes what Algorithm 1 would have accepted.

    Args:
        leniences: Values of l; every draft is judged with each of them.
    """

    def __init__(self, leniences: Sequence[float]) -> None:
        self.leniences = tuple(leniences)
        self._noted: tuple[Tensor, Tensor] | None = None

    def __call__(self, case: Case) -> Verdict:
        """Judge a draft; a draft that turns out faulty is followed by a second call without one."""
        self._noted = self._odds(case) if case.proposal.tokens.shape[1] else None
        if case.scores is not None:
            first = case.scores[:, 0]
            token = top(first)
            sound = first.gather(1, token[:, None])[:, 0].isfinite()
        else:
            assert case.p is not None
            assert case.uniforms is not None
            # The last number, where `accept` too finds the one that draws the next token.
            token, total = draw_with_total(case.p[:, 0], case.uniforms[:, -1])
            sound = total > 0
        return Verdict(torch.zeros_like(token), token, sound)

    def noted(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return what the last draft is worth, or None where there was none.

        Returns:
            Two arrays `[B, K, L]`, for each of the L values of l: beta, the probability that a token drawn from q
            is accepted at that position, and the probability that the very token which was drawn is. Beyond a
            row's length they mean nothing.
        """
        if self._noted is None:
            return None
        # One transfer for both: on a GPU each is a wait.
        both = torch.stack(self._noted).double().cpu().numpy()
        return both[0], both[1]

    def _odds(self, case: Case) -> tuple[Tensor, Tensor]:
        if case.scores is not None:
            return _odds_of_argmax(case.proposal, case.scores, self.leniences)
        assert case.p is not None
        return _odds(case.proposal, case.p, self.leniences)


def _odds(proposal: Proposal, p: Tensor, leniences: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return beta and the drawn token's own probability, `[B, K, L]` each, from p `[B, K + 1, V]`."""
    tokens = proposal.tokens
    p = p[:, : tokens.shape[1]]
    ratio = p.gather(2, tokens[..., None])[..., 0] / density(proposal.q, tokens)
    own = torch.stack([(ratio / l_each).clamp(max=1) for l_each in leniences], dim=2)
    if isinstance(proposal.q, PointMass):
        return own, own
    q = dense(proposal.q, tokens, p.shape[2])
    return torch.stack([lenient_acceptance(p, q, l_each) for l_each in leniences], dim=2).clamp(max=1), own


def _odds_of_argmax(proposal: Proposal, scores: Tensor, leniences: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the same where p is one-hot, from scores `[B, K + 1, V]`: a token is kept always or never."""
    tokens = proposal.tokens
    scores = scores[:, : tokens.shape[1]]
    best = top(scores)
    own = torch.stack([_granted(scores, best, tokens, l_each) for l_each in leniences], dim=2).float()
    if isinstance(proposal.q, PointMass):
        return own, own
    # q need not be one-hot: a drafter may have sampling settings of its own.
    q = dense(proposal.q, tokens, scores.shape[2])
    largest = scores.gather(2, best[..., None])
    betas = []
    for l_each in leniences:
        if l_each < 1:
            betas.append((q * (scores >= largest + math.log(l_each))).sum(dim=2))
        else:
            betas.append(q.gather(2, best[..., None])[..., 0])
    return torch.stack(betas, dim=2).clamp(max=1), own


def _granted(scores: Tensor, best: Tensor, tokens: Tensor, l_each: float) -> Tensor:
    lenience = torch.full(tokens.shape, l_each, device=tokens.device)
    return (tokens == best) | granted_by_argmax_lenience(scores, tokens, lenience)
