"""Exact match: greedy decoding without probabilities."""

from __future__ import annotations

from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.verification import accept_greedy


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
