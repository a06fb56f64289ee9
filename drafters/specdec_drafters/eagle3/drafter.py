"""The eagle3 drafter: one decoder layer that reads the target's hidden states and drafts token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import Branches, Drafter, DraftRequest, DraftSession, Outcome, SessionInfo, TargetInfo
from specdec_core.models import LoadedModel, inspect_family, moved, uploaded
from specdec_drafters.common.model_drafter import ModelDraftSession, max_length_of
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.model import CARRIED


class Eagle3Drafter(Drafter):
    """Drafts with an EAGLE-3 head, in the format of the speculators package.

    The head has one entry for each token but the first: entry t reads the target's hidden states of x_t, from the
    layers that the checkpoint names, and the embedding of x_(t + 1), and predicts x_(t + 2). The entries of
    drafted tokens read the head's own output in place of the target's states. They are made again with the
    target's states once their tokens are accepted.

    A head with a mask token (P-EAGLE) drafts all tokens in one pass. Behind the entry of the last token x_n it has
    K - 1 entries of the mask token, each beside the learned `mask_hidden` in place of the target's states. The
    entry of x_n predicts the first token of the draft, that of mask i the token after it. In a tree, all nodes at
    a depth are drawn at one entry.

    q is the head's distribution over its draft vocabulary, at the target's token ids, after the run's draft
    sampling settings; all other tokens have q = 0, and the residual has them.

    References:
        Li et al. 2025 (arXiv 2503.01840); Hui et al. 2026 (P-EAGLE, arXiv 2602.01469).
    """

    drafts_trees = True

    def __init__(self, config: Any, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.head, self.hidden_layers = self.read(config.model, target)
        self.loaded = loaded_head(self.head, config.model)
        self.max_length = max_length_of(self.loaded, _Eagle3Session.skipped)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _Eagle3Session(self, session)

    def read(self, model: str, target: TargetInfo) -> tuple[Any, tuple[int, ...]]:
        """Read a checkpoint; return the head, and the layers of the target that it reads."""
        return read_eagle3(model, target)

    def combined(self, states: Mapping[int, Tensor], columns: Sequence[Sequence[int]]) -> Tensor:
        """Return what the head reads of the tokens in T columns of each row, `[B, T, D]`."""
        kept = [states[layer] for layer in self.hidden_layers]
        index = uploaded(columns, kept[0].device, torch.long)[..., None]
        parts = [one.gather(1, index.expand(-1, -1, one.shape[2])) for one in kept]
        combined: Tensor = self.head.combine(torch.cat(parts, dim=-1).to(self.head.device, self.head.dtype))
        return combined


def loaded_head(head: Any, name: str) -> LoadedModel:
    """Return a head as a model that a session can run."""
    family = inspect_family(head)
    return LoadedModel(head, None, name, family, vocab_size=head.config.vocab_size, eos_ids=(), start_id=None)


class _Eagle3Session(ModelDraftSession):
    """One batch. Entries of drafted tokens or masks are made again; none is kept."""

    skipped = 1

    def __init__(self, drafter: Eagle3Drafter, session: SessionInfo) -> None:
        head = drafter.head
        self._mask_state = None if head.mask_hidden is None else head.combine(head.mask_hidden)
        if self._mask_state is None:
            super().__init__(drafter.loaded, session, hidden_layers=(CARRIED,))
        else:
            super().__init__(drafter.loaded, session, mask_token=head.shape.mask_token_id)
        self._drafter = drafter

    def commit(self, outcome: Outcome) -> None:
        """Keep nothing of the draft."""

    def _states(self, request: DraftRequest, counts: Sequence[int], masks: int) -> Tensor:
        """Return the states of the tokens before the next ones, as the head reads them, `[B, T + masks, D]`."""
        longest = max(counts)
        # Padding is any token that has been read.
        columns = [
            [0] * (longest - count) + list(range(first, first + count))
            for first, count in zip(self._kept, counts, strict=True)
        ]
        before = self._drafter.combined(request.hidden_states, columns)
        if self._mask_state is None:
            return before
        return torch.cat([before, self._mask_state.expand(len(before), masks, -1)], dim=1)

    def _states_after(self, drawn: Branches) -> Tensor:
        """Return the head's own states of the tokens that each was drawn after, `[B, M, D]`."""
        kept = self._model.hidden_states[CARRIED]
        # Node n is in the slot after the committed entries, the last of which is before the first level.
        first = uploaded(self._kept, drawn.parents.device)[:, None]
        slots = moved((first + drawn.parents).clamp(0, kept.shape[1] - 1), kept.device)
        return kept.gather(1, slots[..., None].expand(-1, -1, kept.shape[2]))
