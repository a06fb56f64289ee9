"""Lossless rules that Algorithm 1 is compared with: exact match and rejection sampling."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.verification import accept, accept_greedy, count_accepted, dense, density, draw_next


class ExactMatchRule(AcceptanceRule):
    """Accepts draft tokens while they equal the target's argmax.

    In greedy decoding all lossless rules come to this. Where the target samples, the argmax alone would
    replace p, so the rule is an error there when the config is read.

    References:
        Stern et al. 2018, Blockwise Parallel Decoding, section 3 (arXiv 1811.03115).
    """

    def sample(self, *_: object) -> AcceptanceResult:
        """Raise an error: the rule verifies greedy drafts only.

        Raises:
            PluginError: Always.
        """
        raise PluginError("exact-match verifies greedy drafts only; set temperature to 0, or choose another rule.")

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft."""
        return accept_greedy(proposal, scores, None)


class RejectionRule(AcceptanceRule):
    """Accepts x with probability p(x) / (M q(x)), M = max_x p(x) / q(x), and otherwise draws from p itself.

    This is the non-iterative rejection sampling of appendix A.2: one attempt, so that a step needs one target
    forward pass. It is exact: an accepted token is y with probability q(y) p(y) / (M q(y)) = p(y) / M, a drawn one
    with (1 - 1 / M) p(y), together p(y). It accepts with probability 1 / M = min_x q(x) / p(x), never more than
    Algorithm 1, and nothing where q excludes a token that p does not. Given the token that was emitted, the
    probability that it was accepted is 1 / M as well, whatever token it is.

    References:
        Leviathan et al. 2023, appendix A.2 (arXiv 2211.17192).
    """

    def acceptance_given_text(
        self,
        ratio: NDArray[np.float64],  # noqa: ARG002
        least: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        """Return 1 / M at each position."""
        assert least is not None, "`replays_from` is `all`"
        return np.minimum(least, 1.0)

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:  # noqa: ARG002
        """Verify a draft where the target samples."""
        batch, width = proposal.tokens.shape
        if not width:
            return accept(proposal, p, None, uniforms)
        here = p[:, :width]
        ratio = dense(proposal.q, proposal.tokens, p.shape[2]) / here
        share = torch.where(here > 0, ratio, torch.inf).amin(dim=2).clamp(max=1)  # 1 / M, [B, K]
        p_x = here.gather(2, proposal.tokens[..., None])[..., 0]
        passes = uniforms[:, :width] * density(proposal.q, proposal.tokens) < share * p_x
        accepted = count_accepted(passes, proposal)
        rows = torch.arange(batch, device=p.device)
        token, sound = draw_next(p[rows, accepted], uniforms[:, width])
        return AcceptanceResult(accepted, token, sound)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:  # noqa: ARG002
        """Verify a greedy draft: with a one-hot p, M is 1 / q(argmax), and the argmax is always accepted."""
        return accept_greedy(proposal, scores, None)
