"""Drafters that draft with a model, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from specdec_core.models import LoadedModel, ModelSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class ModelDrafter(Drafter):
    """Drafts with a model that has the target's tokens; subclasses say where it comes from.

    It has its own KV cache. Rejected tokens are rolled back; tokens committed without it (the recovered or bonus
    token, steps in which it was not asked) are read in one forward pass with the next draft. A draft of gamma
    tokens takes gamma forward passes, the first of which also reads the new tokens. A tree takes one for
    each level.

    Attributes:
        loaded: The model.

    References:
        Algorithm 1 and section 4.1 of arXiv 2211.17192.
    """

    drafts_trees = True
    autoregressive = True
    loaded: LoadedModel

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _ModelDraftSession(self.loaded, session)


class _ModelDraftSession(DraftSession):
    """One batch.

    The cache holds, for each row, `_kept` committed tokens and then `_drafted` tokens of the last draft; the
    next draft begins by rolling it back to the former.
    """

    def __init__(self, loaded: LoadedModel, session: SessionInfo) -> None:
        capacity = session.capacity + session.max_gamma
        self._capacity = min(capacity, loaded.max_positions or capacity)
        sources = session.sources if loaded.encoder_decoder else None
        self._model = ModelSession(
            loaded, session.batch_size, self._capacity, sources, vocab_size=session.vocab_size
        )
        self._vocab_size = session.vocab_size
        self._kept = [0] * session.batch_size
        self._drafted = [0] * session.batch_size

    def propose(self, request: DraftRequest) -> Proposal:
        self._drafted = [0] * len(self._drafted)
        # A sequence longer than the drafter's positions samples its budget like any other, so that its random
        # numbers do not depend on its neighbours, but the samples are dropped.
        limits = [
            max(min(budget, self._capacity - len(row) + 1), 0)
            for row, budget in zip(request.tokens, request.budget, strict=True)
        ]
        if request.tree is not None:
            return self._propose_tree(request, limits)
        drawn: Tensor | None = None
        place = 0
        while request.wants_more():
            active = [limit > place for limit in limits]
            if not any(active):
                logits = torch.zeros(len(limits), self._vocab_size)
            elif drawn is None:
                logits = self._read(request.tokens, active)
            else:
                logits = self._go_on(drawn, active)
            drawn = request.sample(logits)
            place += 1
        proposal = request.proposal()
        return replace(proposal, lengths=tuple(map(min, proposal.lengths, limits)))

    def _propose_tree(self, request: DraftRequest, limits: Sequence[int]) -> Proposal:
        logits = torch.zeros(len(limits), 1, self._vocab_size)
        if any(limits):
            logits = self._read(request.tokens, [limit > 0 for limit in limits])[:, None]
        left = list(limits)
        while request.wants_more():
            drawn = request.branch(logits)
            if not request.wants_more():
                break
            counts = [min(new, most) for new, most in zip(drawn.lengths, left, strict=True)]
            left = [most - count for most, count in zip(left, counts, strict=True)]
            logits = torch.zeros(*drawn.tokens.shape, self._vocab_size)
            if any(counts):
                logits = self._model.forward([[]] * len(counts), drawn.tokens, counts, drawn.parents)
        proposal = request.proposal()
        return replace(proposal, lengths=tuple(map(min, proposal.lengths, limits)))

    def commit(self, outcome: Outcome) -> None:
        """Keep the cached part of the accepted tokens; the rest of the draft is void."""
        if outcome.used and outcome.paths is not None:
            self._model.keep(outcome.paths)
            self._kept = list(self._model.lengths)
        elif outcome.used:
            for row, accepted in enumerate(outcome.accepted):
                self._kept[row] += min(accepted, self._drafted[row])
        self._drafted = [0] * len(self._drafted)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Shorten the valid part of the cache; the next draft rolls it back."""
        self._kept = [min(kept, length) for kept, length in zip(self._kept, lengths, strict=True)]

    def close(self) -> None:
        """Free the cache."""
        self._model.close()

    def _read(self, tokens: Sequence[Sequence[int]], active: Sequence[bool]) -> Tensor:
        """Read the committed tokens that are not cached yet; return the logits after them, `[B, V]`.

        Rows that draft nothing are skipped, and catch up when they draft again. For the others, the last token is
        read again even if it is cached, because its logits are not.
        """
        self._kept = [
            min(kept, len(row) - 1) if draws else kept
            for row, kept, draws in zip(tokens, self._kept, active, strict=True)
        ]
        self._model.rollback(self._kept)
        fresh = [row[kept:] if draws else [] for row, kept, draws in zip(tokens, self._kept, active, strict=True)]
        logits = self._model.forward(fresh)[:, -1]
        self._kept = [old + len(new) for old, new in zip(self._kept, fresh, strict=True)]
        return logits

    def _go_on(self, drawn: Tensor, active: Sequence[bool]) -> Tensor:
        """Read the tokens just sampled, `[B]`; return the logits after them, `[B, V]`."""
        counts = [int(draws) for draws in active]
        logits = self._model.forward([[]] * len(counts), drawn[:, None], counts)[:, -1]
        self._drafted = [old + new for old, new in zip(self._drafted, counts, strict=True)]
        return logits
