"""The transformer drafter: a smaller model with the target's vocabulary, the approximation model of the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specdec_core.border import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo, TargetInfo
from specdec_core.errors import ModelError
from specdec_core.models import LoadedModel, ModelSession, load_model
from specdec_drafters.configs import TransformerConfig
from specdec_drafters.vocabulary import check_vocabulary

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
        self.loaded = load_model(
            config.model,
            dtype=config.dtype,
            device=str(target.device) if config.device == "auto" else config.device,
            device_map=config.device_map,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            folder=target.folder,
        )
        if self.loaded.encoder_decoder and not target.encoder_decoder:
            raise ModelError(
                f"drafter 'transformer': {self.loaded.name} has an encoder, which needs a source to read, but the "
                "target has none. Choose a decoder-only drafter."
            )
        check_vocabulary(target, self.loaded)

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
        self._model = ModelSession(loaded, session.batch_size, self._capacity, sources)
        self._width = loaded.vocab_size
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
                logits = torch.zeros(len(limits), self._width)
            elif drawn is None:
                logits = self._read(request.tokens, active)
            else:
                logits = self._go_on(drawn, active)
            drawn = request.sample(self._fitted(logits))
            place += 1
        proposal = request.proposal()
        return replace(proposal, lengths=tuple(map(min, proposal.lengths, limits)))

    def commit(self, outcome: Outcome) -> None:
        """Count what was cached of the tokens that were accepted; all else that was drafted is void."""
        if outcome.used:
            for row, accepted in enumerate(outcome.accepted):
                self._kept[row] += min(accepted, self._drafted[row])
        self._drafted = [0] * len(self._drafted)

    def close(self) -> None:
        """Free the cache."""
        self._model.close()

    def _read(self, tokens: Sequence[Sequence[int]], active: Sequence[bool]) -> Tensor:
        """Read the committed tokens that are not cached yet; return the logits after them, `[B, width]`.

        Rows that draft nothing are left as they are, and caught up with when they draft again. Of the others
        the last token is read again even if it is cached: its logits are not.
        """
        self._kept = [
            min(kept, len(row) - 1) if draws else kept
            for row, kept, draws in zip(tokens, self._kept, active, strict=True)
        ]
        self._model.rollback(self._kept)
        fresh = [
            self._embeddable(row[kept:]) if draws else []
            for row, kept, draws in zip(tokens, self._kept, active, strict=True)
        ]
        logits = self._model.forward(fresh)[:, -1]
        self._kept = [old + len(new) for old, new in zip(self._kept, fresh, strict=True)]
        return logits

    def _go_on(self, drawn: Tensor, active: Sequence[bool]) -> Tensor:
        """Read the tokens just drawn, `[B]`; return the logits after them, `[B, width]`."""
        counts = [int(draws) for draws in active]
        logits = self._model.forward([[]] * len(counts), drawn[:, None], counts)[:, -1]
        self._drafted = [old + new for old, new in zip(self._drafted, counts, strict=True)]
        return logits

    def _embeddable(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens, those the drafter has no embedding for (padding of the target's) as 0."""
        if self._width >= self._vocab_size:
            return list(tokens)
        return [token if token < self._width else 0 for token in tokens]

    def _fitted(self, logits: Tensor) -> Tensor:
        """Return logits `[B, V]` of `[B, width]`, of the target's V tokens."""
        if self._width == self._vocab_size:
            return logits
        logits = logits[:, : self._vocab_size]
        missing = self._vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits
