"""Synthetic acceptance: draft tokens are accepted as often as a profile says, whatever they are."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, Proposal
from specdec_core.verification import accept, accept_allowed, accept_greedy, count_accepted, draw_next


class SyntheticRule(AcceptanceRule):
    """Accepts token i of a draft with the rate of position i, independently of the token, of q and of p.

    A drafter cannot do that: an exact rule accepts what the target would say, which no drafter knows. So what
    accepts like a profile is a rule, with any drafter, as in vLLM. The texts mean nothing: a run with this rule
    measures the time of steps with a drafter of that acceptance.

    The next token is drawn from p. A verified position then has the distribution r q + (1 - r) p, whose total
    variation from p is r times that of q from p. A greedy rule is given no random numbers; there a hash of the
    target's best score and of the draft token takes their part.
    """

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Verify a draft where the target samples."""
        width = proposal.tokens.shape[1]
        if not width:
            return accept(proposal, p, None, uniforms)
        rates = self._rates(width, p.device)
        # No text goes on behind NaN, so that decoding reports it.
        passes = (uniforms[:, :width] < rates) & ~p[:, :width].isnan().any(dim=2)
        accepted = count_accepted(passes, proposal)
        rows = torch.arange(len(accepted), device=p.device)
        token, sound = draw_next(p[rows, accepted], uniforms[:, width])
        # With every token allowed, this is the total variation of q from p.
        apart = accept_allowed(proposal, p, torch.ones_like(p[:, :width], dtype=torch.bool), uniforms)
        assert apart.deviation is not None
        return AcceptanceResult(accepted, token, sound, rates * apart.deviation)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft; the deviation counts accepted tokens that are not the argmax."""
        width = proposal.tokens.shape[1]
        if not width:
            return accept_greedy(proposal, scores, None)
        best = scores.argmax(dim=2)
        here = scores[:, :width]
        passes = _hashed(here.amax(dim=2), proposal.tokens) < self._rates(width, scores.device)
        accepted = count_accepted(passes & ~here.isnan().any(dim=2), proposal)
        rows = torch.arange(len(accepted), device=scores.device)
        token = best[rows, accepted]
        other = (proposal.tokens != best[:, :width]).float()
        return AcceptanceResult(accepted, token, scores[rows, accepted, token].isfinite(), other)

    def _rates(self, width: int, device: torch.device) -> Tensor:
        """Return the rates of the first positions, `[K]` float64; the last one holds for all later positions."""
        rates = self.config.rates
        return torch.tensor([rates[min(at, len(rates) - 1)] for at in range(width)], device=device).double()


def _hashed(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return numbers in [0, 1) that look random, `[B, K]` float64, from scores `[B, K]` float32 and token ids."""
    mask = 0xFFFFFFFF
    bits = (scores.contiguous().view(torch.int32).long() + 0x9E3779B9 * (tokens + 1)) & mask
    for _ in range(2):
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & mask
    return (bits ^ (bits >> 16)).double() / 2**32
