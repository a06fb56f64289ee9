"""The eagle3 drafter: one decoder layer that reads the target's hidden states and drafts token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_core.interface import (
    Drafter,
    DraftRequest,
    DraftSession,
    PluginConfig,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.models import LoadedModel, ModelSession, inspect_family
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.config import Eagle3Config
from specdec_drafters.eagle3.model import CARRIED


class Eagle3Drafter(Drafter):
    """Drafts with an EAGLE-3 head, in the format of the speculators package.

    The head has one entry for each token but the first: entry t reads the target's hidden states of x_t, from the
    layers that the checkpoint names, and the embedding of x_(t + 1), and predicts x_(t + 2). The entries of
    drafted tokens read the head's own output in place of the target's states. They are made again with the
    target's states once their tokens are accepted.

    q is the head's distribution over its draft vocabulary, at the target's token ids, after the run's draft
    sampling settings; all other tokens have q = 0, and the residual has them.

    References:
        Li et al. 2025 (arXiv 2503.01840).
    """

    Config: ClassVar[type[PluginConfig]] = Eagle3Config
    needs_hidden_states = True
    drafts_trees = True

    def __init__(self, config: Any, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.head, self.hidden_layers = self.read(config.model, target)
        self.loaded = loaded_head(self.head, config.model)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _Eagle3Session(self, session)

    def read(self, model: str, target: TargetInfo) -> tuple[Any, tuple[int, ...]]:
        """Read a checkpoint; return the head, and the layers of the target that it reads."""
        return read_eagle3(model, target)

    def combined(self, states: Mapping[int, Tensor], row: int, first: int, end: int) -> Tensor:
        """Return what the head reads of tokens `first` to `end - 1` of a row, `[end - first, D]`."""
        parts = [states[layer][row, first:end] for layer in self.hidden_layers]
        combined: Tensor = self.head.combine(torch.cat(parts, dim=-1).to(self.head.device, self.head.dtype))
        return combined


def loaded_head(head: Any, name: str) -> LoadedModel:
    """Return a head as a model that a session can run."""
    family = inspect_family(head)
    return LoadedModel(head, None, name, family, vocab_size=head.config.vocab_size, eos_ids=(), start_id=None)


class _Eagle3Session(DraftSession):
    """One batch.

    The cache holds, for each row, `_kept` entries that have read the target's states, then those of the last
    draft. The next draft begins by rolling it back to the former.
    """

    def __init__(self, drafter: Eagle3Drafter, session: SessionInfo) -> None:
        self._drafter = drafter
        loaded = drafter.loaded
        # n tokens have n - 1 entries, and gamma draft tokens after them add gamma - 1.
        capacity = session.capacity + session.max_gamma
        self._capacity = min(capacity, loaded.max_positions or capacity)
        self._head = ModelSession(
            loaded,
            session.batch_size,
            capacity,
            vocab_size=session.vocab_size,
            hidden_layers=(CARRIED,),
        )
        self._vocab_size = session.vocab_size
        self._kept = [0] * session.batch_size

    @torch.inference_mode()
    def propose(self, request: DraftRequest) -> Proposal:
        # In the first step the target has not read the prompt yet; with a single token it has read none.
        if not request.hidden_states or not request.wants_more():
            return request.proposal()
        # As in the transformer drafter: tokens beyond the head's positions are drawn, and dropped.
        limits = [
            max(min(budget, self._capacity - len(row) + 2), 0) if len(row) > 1 else 0
            for row, budget in zip(request.tokens, request.budget, strict=True)
        ]
        logits = torch.zeros(len(limits), self._vocab_size)
        if any(limits):
            logits = self._read(request, [limit > 0 for limit in limits])
        if request.tree is None:
            self._draft_line(request, limits, logits)
        else:
            self._draft_tree(request, limits, logits)
        proposal = request.proposal()
        return replace(proposal, lengths=tuple(map(min, proposal.lengths, limits)))

    def _draft_line(self, request: DraftRequest, limits: Sequence[int], logits: Tensor) -> None:
        place = 0
        while request.wants_more():
            drawn = request.sample(logits)
            place += 1
            counts = [int(limit > place) for limit in limits]
            if not any(counts) or not request.wants_more():
                continue
            last = torch.tensor([length - 1 for length in self._head.lengths])
            logits = self._go_on(drawn[:, None], counts, last[:, None])[:, -1]

    def _draft_tree(self, request: DraftRequest, limits: Sequence[int], logits: Tensor) -> None:
        base = torch.tensor(self._head.lengths)[:, None]
        left, logits = list(limits), logits[:, None]
        while request.wants_more():
            drawn = request.branch(logits)
            if not request.wants_more():
                break
            counts = [min(new, most) for new, most in zip(drawn.lengths, left, strict=True)]
            left = [most - count for most, count in zip(left, counts, strict=True)]
            logits = torch.zeros(*drawn.tokens.shape, self._vocab_size)
            if any(counts):
                # Node n is in slot base + n; the parents of the first level are the last entry before them.
                logits = self._go_on(
                    drawn.tokens, counts, base.to(drawn.parents.device) + drawn.parents, drawn.parents
                )

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep the entries of the tokens that are left: that of token t has read token t + 1."""
        self._kept = [min(kept, max(length - 1, 0)) for kept, length in zip(self._kept, lengths, strict=True)]

    def close(self) -> None:
        """Free the cache."""
        self._head.close()

    def _read(self, request: DraftRequest, active: Sequence[bool]) -> Tensor:
        """Read the committed tokens that have no entry yet; return the logits after them, `[B, V]`.

        Rows that draft nothing are skipped, and catch up when they draft again. For the others, the last token is
        read again even if it has an entry, because its logits are not kept.
        """
        rows = list(zip(request.tokens, active, strict=True))
        self._kept = [
            min(kept, len(row) - 2) if draws else kept for (row, draws), kept in zip(rows, self._kept, strict=True)
        ]
        self._head.rollback(self._kept)
        fresh, states = [], []
        for index, (row, draws) in enumerate(rows):
            first, end = self._kept[index], len(row) - 1 if draws else self._kept[index]
            fresh.append(row[first + 1 : end + 1])
            states.append(self._drafter.combined(request.hidden_states, index, first, end))
        longest = max(map(len, fresh))
        aligned = torch.stack([pad(one, (0, 0, longest - len(one), 0)) for one in states])
        logits = self._head.forward(fresh, states=aligned)[:, -1]
        self._kept = list(self._head.lengths)
        return logits

    def _go_on(self, drawn: Tensor, counts: Sequence[int], after: Tensor, parents: Tensor | None = None) -> Tensor:
        """Read tokens that were just drawn; return the logits after them, `[B, M, V]`.

        Args:
            drawn: `[B, M]` int64.
            counts: How many of each row are read.
            after: `[B, M]` int64, the slot of the entry that each was drawn after.
            parents: `[B, M]` int64, in a tree the node that each was drawn after.
        """
        kept = self._head.hidden_states[CARRIED]
        slots = after.to(kept.device).clamp(0, kept.shape[1] - 1)
        states = kept.gather(1, slots[..., None].expand(-1, -1, kept.shape[2]))
        return self._head.forward([()] * len(counts), drawn, counts, parents, states)
