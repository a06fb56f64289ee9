"""Drafters that declare what they are not, which only a replay relies on."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.interface import DraftRequest, Proposal
from tests.testing.defects.healthy import Deterministic, Sampling, context


class BetsOnTheBudget(Deterministic):
    """Drafts other tokens where more are asked for."""

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [(tokens[-1] + budget + n) % self.target.vocab_size for n in range(budget)]


class SeesNoDraft(Sampling):
    """Its q depends on where the draft began, as that of heads does."""

    autoregressive = True

    def propose(self, request: DraftRequest) -> Proposal:
        indices = [context(row) for row in request.tokens]
        while request.wants_more():
            request.sample(self.table[indices])
            indices = [(index + 1) % len(self.table) for index in indices]
        return request.proposal()


class TakesNothingFromTheRequest(Deterministic):
    """Its tokens are its own, so that it cannot be asked along a text."""

    autoregressive = True
