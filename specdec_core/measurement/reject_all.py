"""A rule that rejects every draft and records its acceptance probabilities; the text is the target's alone.

At every token that the target generates, the drafter proposes a draft, and the target computes p at each of its
positions, as in a speculative step. Instead of drawing whether tokens are accepted, as in Algorithm 1, the rule
records the probabilities.

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

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PointMass, Proposal
from specdec_core.sampling.generators import draw_with_total
from specdec_core.sampling.logits import argmax
from specdec_core.verification.distributions import dense, density
from specdec_core.verification.lenience import lenient_acceptance, within_greedy_lenience


class RejectAllRule(AcceptanceRule):
    """Accepts nothing, draws the next token from p, and records what Algorithm 1 would accept.

    Args:
        leniences: Values of l; probabilities are recorded for each of them.
    """

    def __init__(self, leniences: Sequence[float]) -> None:
        self.leniences = tuple(leniences)
        self._recorded: tuple[Tensor, Tensor] | None = None

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Reject the draft, and draw the next token from p."""
        self._recorded = _odds(proposal, p, self.leniences) if proposal.tokens.shape[1] else None
        # The last one, which draws the next token in Algorithm 1 too.
        token, total = draw_with_total(p[:, 0], uniforms[:, -1])
        return AcceptanceResult(torch.zeros_like(token), token, total > 0)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Reject the draft, and commit the argmax."""
        self._recorded = _greedy_odds(proposal, scores, self.leniences) if proposal.tokens.shape[1] else None
        token = argmax(scores[:, 0])
        sound = scores[:, 0].gather(1, token[:, None])[:, 0].isfinite()
        return AcceptanceResult(torch.zeros_like(token), token, sound)

    def recorded(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the acceptance probabilities of the last draft, or None if there was no draft.

        Returns:
            Two arrays `[B, K, L]`, float64, for each of the L values of l: beta, the probability that a token
            drawn from q is accepted at that position, and the probability that the drafted token is. Undefined
            beyond the length of a draft.
        """
        if self._recorded is None:
            return None
        # A single transfer, as each one synchronizes the device.
        both = torch.stack(self._recorded).double().cpu().numpy()
        return both[0], both[1]


def _odds(proposal: Proposal, p: Tensor, leniences: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return beta and the drafted token's own probability, `[B, K, L]` each, from p `[B, K + 1, V]`."""
    tokens = proposal.tokens
    p = p[:, : tokens.shape[1]]
    ratio = p.gather(2, tokens[..., None])[..., 0] / density(proposal.q, tokens)
    own = torch.stack([(ratio / l_each).clamp(max=1) for l_each in leniences], dim=2)
    if isinstance(proposal.q, PointMass):
        return own, own
    q = dense(proposal.q, tokens, p.shape[2])
    return torch.stack([lenient_acceptance(p, q, l_each) for l_each in leniences], dim=2).clamp(max=1), own


def _greedy_odds(proposal: Proposal, scores: Tensor, leniences: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the same for a one-hot p, from scores `[B, K + 1, V]`: a token is accepted always or never."""
    tokens = proposal.tokens
    scores = scores[:, : tokens.shape[1]]
    best = argmax(scores)
    own = torch.stack([_granted(scores, best, tokens, l_each) for l_each in leniences], dim=2).float()
    if isinstance(proposal.q, PointMass):
        return own, own
    # q need not be one-hot: a drafter may have its own sampling settings.
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
    return (tokens == best) | within_greedy_lenience(scores, tokens, lenience)
