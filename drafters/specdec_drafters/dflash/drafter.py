"""The dflash drafter: a head that reads the target's hidden states and drafts a block in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from specdec_core.models import moved, uploaded
from specdec_drafters.common.parallel_draft import draw_at_each_depth
from specdec_drafters.dflash.checkpoint import read_dflash
from specdec_drafters.dflash.config import DFlashConfig
from specdec_drafters.dflash.model import DFlashHead


class DFlashDrafter(Drafter):
    """Drafts with a DFlash head, in the format of the speculators package.

    After x_1 ... x_n the target has read all tokens but x_n. The head reads the target's hidden states of those
    tokens, from the layers that the checkpoint names, and a block of x_n and masks. It predicts all masked tokens
    in one forward pass. It always reads a whole block, as in training, so that a draft does not depend on gamma.

    q of a token is the head's distribution at its position, over its draft vocabulary, at the target's token ids,
    after the run's draft sampling settings. It does not depend on the other tokens of the draft. In a tree, all
    nodes at a depth are drawn at one position.

    References:
        Chen et al. 2026 (arXiv 2602.06036).
    """

    drafts_trees = True

    def __init__(self, config: DFlashConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.head, self.hidden_layers = read_dflash(config.model, target)
        positions, shape = self.head.positions, self.head.shape
        # The last token that a block drafts is at the position that predicts it, or after it.
        self.max_length = None if positions is None else positions + shape.drafted - shape.block_size + 1

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return _DFlashSession(self, session)


class _DFlashSession(DraftSession):
    """One batch.

    The cache holds, for each row, the keys and values of its first `_kept` tokens, that of token t in slot t. Only
    committed tokens that the target has read have one, so that a rejected draft leaves nothing to undo.
    """

    def __init__(self, drafter: DFlashDrafter, session: SessionInfo) -> None:
        self._drafter = drafter
        self._kept = [0] * session.batch_size
        head: DFlashHead = drafter.head
        config, slots = head.config, min(session.capacity, drafter.max_length or session.capacity)
        # Not new_empty: masked slots are multiplied by zero, and zero times NaN is NaN.
        shape = (session.batch_size, config.num_key_value_heads, slots, config.head_dim)
        self._cache = [(head.fc.weight.new_zeros(shape), head.fc.weight.new_zeros(shape)) for _ in head.layers]

    @torch.inference_mode()
    def propose(self, request: DraftRequest) -> Proposal:
        if not request.wants_more():
            return request.proposal()
        self._read(request)
        return draw_at_each_depth(request, self._fill_in([row[-1] for row in request.tokens]))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep the slots of the tokens that are left."""
        self._kept = list(map(min, self._kept, lengths))

    def close(self) -> None:
        """Free the cache."""
        self._cache = []

    def _read(self, request: DraftRequest) -> None:
        """Put the committed tokens that the target has read since the last draft into the cache.

        Rows that draft nothing are skipped, and catch up when they draft again.
        """
        head, states = self._drafter.head, request.hidden_states
        rows: list[int] = []
        slots: list[int] = []
        for index, (row, most) in enumerate(zip(request.tokens, request.budget, strict=True)):
            if not most:
                continue
            end = len(row) - 1
            first = min(self._kept[index], end)
            self._kept[index] = end
            rows += [index] * (end - first)
            slots += range(first, end)
        kept = [states[layer] for layer in self._drafter.hidden_layers]
        where, positions = uploaded([rows, slots], kept[0].device, torch.long)
        layers = torch.cat([one[where, positions] for one in kept], dim=-1)
        where, positions = moved(where, head.device), moved(positions, head.device)
        made = head.context(layers.to(head.device, head.dtype), positions)
        for cached, new in zip(self._cache, made, strict=True):
            for buffer, values in zip(cached, new, strict=True):
                buffer[where, :, positions] = values

    def _fill_in(self, last: Sequence[int]) -> Tensor:
        """Return the logits of a block after each row, `[B, drafted, V]`; of rows without a draft, any."""
        head, end = self._drafter.head, max(self._kept)
        anchors, lengths = uploaded([last, self._kept], head.device)
        context = [(keys[:, :, :end], values[:, :, :end]) for keys, values in self._cache]
        logits: Tensor = head(anchors, lengths, context)
        return logits
