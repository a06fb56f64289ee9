"""The random drafter: every token of the vocabulary has the same probability."""

import torch
from torch import Tensor

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo


class RandomDrafter(Drafter):
    """Samples each token with q = 1/V: the cheapest draft, and the floor for all other drafters.

    Its alpha is E[sum over x of min(p(x), 1/V)], above zero for every target, so at a cost near zero it gains a
    little if verifying one more token is free. It also samples in greedy decoding: a run's sampling settings
    shape p, never this q.

    References:
        Section 3.6 of arXiv 2211.17192 (negligible-cost approximation models); alpha by Theorem 3.5.
    """

    autoregressive = True

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch."""
        return _RandomSession(session)


class _RandomSession(DraftSession):
    def __init__(self, session: SessionInfo) -> None:
        row = torch.full((1, session.vocab_size), 1.0 / session.vocab_size, device=session.device)
        self._uniform: Tensor = row.expand(session.batch_size, -1)  # [B, V] float32, one row in memory

    def propose(self, request: DraftRequest) -> Proposal:
        while request.wants_more():
            request.draw(self._uniform)
        return request.proposal()
