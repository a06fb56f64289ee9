"""Lossy rules: a draft token passes if the target ranks it high, or finds it typical."""

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, Proposal
from specdec_core.verification import accept, accept_allowed, accept_greedy, accept_greedy_allowed


class TopKRule(AcceptanceRule):
    """Accepts a draft token that is one of the k most probable tokens of p, sampled or greedy.

    The output has another distribution than p. After a rejection the token is drawn from norm(max(0, p - a q)),
    a(x) being 1 for the k tokens and 0 for others, which deviates least (`accept_allowed` has the proof); in
    greedy decoding it is the argmax. Tokens that the sampling settings exclude are never accepted.

    References:
        Stern et al. 2018, Blockwise Parallel Decoding, section 5.1, for greedy decoding (arXiv 1811.03115).
    """

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Verify a draft where the target samples."""
        width = proposal.tokens.shape[1]
        if not width:
            return accept(proposal, p, None, uniforms)
        here = p[:, :width]
        return accept_allowed(proposal, p, (here >= self._least(here)) & (here > 0), uniforms)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft; the deviation counts accepted tokens that are not the argmax."""
        here = scores[:, : proposal.tokens.shape[1]]
        x = here.gather(2, proposal.tokens[..., None])
        return accept_greedy_allowed(proposal, scores, ((x >= self._least(here)) & x.isfinite())[..., 0])

    def _least(self, values: Tensor) -> Tensor:
        """Return the k-th largest value at each position, `[B, K, 1]`."""
        return values.topk(min(self.config.k, values.shape[2]), dim=2).values[..., -1:]


class TypicalRule(AcceptanceRule):
    """Accepts a draft token that the target finds typical: p(x) > min(epsilon, delta exp(-H(p))).

    H is the entropy of p in nats. q plays no part in the test, so the output has another distribution than p.
    Unlike Medusa, which draws the token after a rejection without regard to q, this rule draws it from
    norm(max(0, p - a q)), a(x) being 1 for typical tokens and 0 for others, so that it deviates least
    (`accept_allowed` has the proof). And the first token of a draft is verified like the others.

    References:
        Cai et al. 2024, Medusa, "Typical Acceptance" (arXiv 2401.10774). Its code calls epsilon the posterior
        threshold and delta the posterior alpha; the defaults are its own.
    """

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Verify a draft where the target samples."""
        width = proposal.tokens.shape[1]
        if not width:
            return accept(proposal, p, None, uniforms)
        here = p[:, :width]
        entropy = torch.special.entr(here).sum(dim=2, keepdim=True)
        threshold = (self.config.delta * (-entropy).exp()).clamp(max=self.config.epsilon)
        return accept_allowed(proposal, p, here > threshold, uniforms)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft: of a one-hot p, the argmax alone is typical."""
        return accept_greedy(proposal, scores, None)
