"""Drafters that draft with their own model, token by token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import (
    Branches,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.models import LoadedModel, ModelSession
from specdec_drafters.common.parallel_draft import draw_at_each_depth


class ModelDrafter(Drafter):
    """Drafts with a model that has the target's tokens; subclasses say where it comes from.

    It has its own KV cache. Rejected tokens are rolled back; tokens committed without it (the recovered or bonus
    token, steps in which it was not asked) are read in one forward pass with the next draft. A draft of gamma
    tokens takes gamma forward passes, the first of which also reads the new tokens. A tree takes one for
    each level.

    Args:
        config: Its validated settings.
        target: The target it drafts for.
        loaded: The model.

    Attributes:
        loaded: The model.

    References:
        Algorithm 1 and section 4.1 of arXiv 2211.17192.
    """

    autoregressive = True

    def __init__(self, config: Any, target: TargetInfo, loaded: LoadedModel) -> None:
        super().__init__(config, target)
        self.loaded = loaded
        self.drafts_trees = loaded.family.trees
        self.max_length = max_length_of(loaded)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return ModelDraftSession(self.loaded, session)


def max_length_of(loaded: LoadedModel, skipped: int = 0) -> int | None:
    """Return the `Drafter.max_length` of a model that reads all tokens of a draft but the last.

    Args:
        loaded: The model.
        skipped: Number of tokens at the beginning of a text that it does not read.
    """
    return None if loaded.max_positions is None else loaded.max_positions + 1 + skipped


class ModelDraftSession(DraftSession):
    """A batch that a model drafts for.

    The cache holds, for each row, the first `_kept` committed tokens that the model reads, then those of the last
    draft that it read. The next draft begins by rolling it back to the former.

    A model with a mask token drafts in one pass: after x_1 ... x_n it reads K - 1 mask tokens. Its logits at x_n
    predict the first token of the draft, those at mask i the token after that position. Masks are never kept.

    A draft head that reads a hidden state beside each token overrides `_states` and `_states_after`.

    Args:
        loaded: The model.
        session: The batch.
        hidden_layers: Layers of the model whose outputs are kept; see `ModelSession`.
        mask_token: The mask token of a model that drafts all tokens in one pass; None if it drafts token by token.
        count: The most tokens of a draft in one pass; None for as many as are asked for.
    """

    skipped = 0
    """Number of tokens at the beginning of a text that the model does not read."""

    def __init__(
        self,
        loaded: LoadedModel,
        session: SessionInfo,
        hidden_layers: Sequence[int] = (),
        *,
        mask_token: int | None = None,
        count: int | None = None,
    ) -> None:
        longest = min(session.capacity, loaded.max_positions or session.capacity)
        self._beside_target = torch.device(session.device) == loaded.device
        self._model = ModelSession.of_batch(
            loaded, session, longest + session.max_gamma, hidden_layers=hidden_layers
        )
        self._kept = [0] * session.batch_size
        self._drafted = [0] * session.batch_size
        self._masks: Tensor | None = None
        if mask_token is not None:
            shape = (session.batch_size, session.max_gamma)
            self._masks = torch.full(shape, mask_token, device=loaded.device)
        self._count = count
        # Of the tokens of a line, each of which is the only node of its level: made once, for all drafts.
        chain = torch.arange(-1, session.max_gamma - 1).expand(session.batch_size, -1)
        self._parents = torch.split(chain, 1, dim=1)

    def propose(self, request: DraftRequest) -> Proposal:
        """Draft token by token, or a tree level by level; with a mask token, all in one pass."""
        self._drafted = [0] * len(self._drafted)
        if not request.wants_more():
            return request.proposal()
        if self._masks is not None:
            counts = [most if self._count is None else min(most, self._count) for most in request.depth]
            masks = [max(count - 1, 0) for count in counts]
            return draw_at_each_depth(request, self._read(request, self._masks[:, : max(masks)], masks))
        if self._draw_line(request):
            return request.proposal()
        logits, depth = self._read(request), 0
        while True:
            drawn, depth = self._drawn(request, logits, depth), depth + 1
            if not request.wants_more():
                return request.proposal()
            parents = None if request.tree is None else drawn.parents
            states = self._states_after(drawn)
            logits = self._model.forward([()] * len(drawn.lengths), drawn.tokens, drawn.lengths, parents, states)
            self._drafted = [old + new for old, new in zip(self._drafted, drawn.lengths, strict=True)]

    def commit(self, outcome: Outcome) -> None:
        """Keep the cached part of the accepted tokens; the rest of the draft is void."""
        if any(outcome.drafted) and outcome.paths is not None:
            self._model.keep(outcome.paths)
            self._kept = list(self._model.lengths)
        else:
            rows = zip(self._kept, outcome.accepted, self._drafted, strict=True)
            self._kept = [kept + min(accepted, drafted) for kept, accepted, drafted in rows]
        self._drafted = [0] * len(self._drafted)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Shorten the valid part of the cache; the next draft rolls it back."""
        left = (max(length - self.skipped, 0) for length in lengths)
        self._kept = list(map(min, self._kept, left))

    def close(self) -> None:
        """Free the cache."""
        self._model.close()

    def _draw_line(self, request: DraftRequest) -> bool:
        """Draft a line in one call; return False where the model or the request cannot."""
        if not self._model.drafts or not self._beside_target:
            return False
        fresh = self._unread(request)
        plain = self._states(request, list(map(len, fresh)), masks=0) is None
        if not plain or not request.sample_line(lambda line: self._model.draft(fresh, line)):
            return False
        self._kept = [kept + len(new) for kept, new in zip(self._kept, fresh, strict=True)]
        self._drafted = [max(most - 1, 0) for most in request.budget]
        return True

    def _unread(self, request: DraftRequest) -> Sequence[Sequence[int]]:
        """Roll the cache back to committed tokens; return those of each row that are to be read.

        Rows that draft nothing are skipped, and catch up when they draft again. For the others, the last token is
        read again even if it is cached, because its logits are not.
        """
        rows = list(zip(request.tokens, request.budget, self._kept, strict=True))
        self._kept = [min(kept, len(row) - self.skipped - 1) if most else kept for row, most, kept in rows]
        self._model.rollback(self._kept)
        self._kept = list(self._model.lengths)  # a recurrent model may have to read more again
        first = [kept + self.skipped for kept in self._kept]
        return [row[start:] if most else () for (row, most, _), start in zip(rows, first, strict=True)]

    def _read(
        self, request: DraftRequest, masks: Tensor | None = None, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Read the committed tokens that are `_unread`; return the logits after them, `[B, 1, V]`.

        Args:
            request: The request.
            masks: `[B, M]` int64, mask tokens to read behind them and not to keep, with the logits after each:
                `[B, 1 + M, V]`.
            counts: The number of masks of each row.
        """
        fresh = self._unread(request)
        states = self._states(request, list(map(len, fresh)), masks=0 if masks is None else masks.shape[1])
        logits = self._model.forward(fresh, masks, counts, states=states)
        self._kept = [kept + len(new) for kept, new in zip(self._kept, fresh, strict=True)]
        if masks is not None:
            self._model.rollback(self._kept)
        return logits

    def _states(self, request: DraftRequest, counts: Sequence[int], masks: int) -> Tensor | None:  # noqa: ARG002
        """Return what is read beside the next `counts[b]` committed tokens of each row, padded on the left.

        Args:
            request: The request.
            counts: The number of tokens of each row.
            masks: The number of mask tokens behind them, which have states too.
        """
        return None

    def _states_after(self, drawn: Branches) -> Tensor | None:  # noqa: ARG002
        """Return what is read beside tokens that were just drawn, `[B, M, D]`."""
        return None

    def _drawn(self, request: DraftRequest, logits: Tensor, depth: int) -> Branches:
        """Draw the next level of a tree, or the next token of a line, which then is the only node of its level.

        Args:
            request: The request.
            logits: `[B, P, V]`, after each node of the level before.
            depth: Number of levels drawn so far.

        Returns:
            The nodes; of a line, without those that end a row's budget, which are not read, and with parents on
            the CPU.
        """
        if request.tree is not None:
            return request.branch(logits)
        tokens = request.sample(logits[:, -1])[:, None]
        lengths = tuple([int(most > depth + 1) for most in request.budget])
        return Branches(tokens, self._parents[depth], lengths)
