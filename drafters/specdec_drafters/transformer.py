"""The transformer drafter: a smaller model with the target's vocabulary, the approximation model of the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specdec_core.border import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo, TargetInfo
from specdec_core.models import LoadedModel, ModelSession
from specdec_drafters.configs import TransformerConfig
from specdec_drafters.draft_model import load_draft_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class TransformerDrafter(Drafter):
    """Drafts with any Hugging Face model whose tokens are numbered as the target's.

    It keeps a cache of its own: what a commit refuses is rolled back, and what was committed without it (the
    recovered or bonus token, tokens of steps in which it was not asked) is read in one forward with the next
    draft. A draft of gamma tokens takes gamma forwards, the first of which reads what is new.

    References:
        Algorithm 1 and section 4.1 of arXiv 2211.17192.
    """

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.loaded = load_draft_model(config, target, "transformer")

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch with an empty cache."""
        return _TransformerSession(self.loaded, session)


class _TransformerSession(DraftSession):
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
        # A row that has outgrown the drafter's positions draws its budget like any other, so that its random
        # numbers do not depend on its neighbours, but what it draws is no draft.
        limits = [
            max(min(budget, self._capacity - len(row) + 1), 0)
            for row, budget in zip(request.tokens, request.budget, strict=True)
        ]
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

    def commit(self, outcome: Outcome) -> None:
        """Count what was cached of the tokens that were accepted; all else that was drafted is void."""
        if outcome.used:
            for row, accepted in enumerate(outcome.accepted):
                self._kept[row] += min(accepted, self._drafted[row])
        self._drafted = [0] * len(self._drafted)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Count less as cached; the next draft rolls the cache back to that."""
        self._kept = [min(kept, length) for kept, length in zip(self._kept, lengths, strict=True)]

    def close(self) -> None:
        """Free the cache."""
        self._model.close()

    def _read(self, tokens: Sequence[Sequence[int]], active: Sequence[bool]) -> Tensor:
        """Read the committed tokens that are not cached yet; return the logits after them, `[B, V]`.

        Rows that draft nothing are left as they are, and caught up with when they draft again. Of the others
        the last token is read again even if it is cached: its logits are not.
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
        """Read the tokens just drawn, `[B]`; return the logits after them, `[B, V]`."""
        counts = [int(draws) for draws in active]
        logits = self._model.forward([[]] * len(counts), drawn[:, None], counts)[:, -1]
        self._drafted = [old + new for old, new in zip(self._drafted, counts, strict=True)]
        return logits
