"""Base classes for drafters that are one function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_core.border.drafter import Drafter, DraftRequest, DraftSession, SessionInfo
from specdec_core.border.proposal import Proposal

if TYPE_CHECKING:
    from torch import Tensor


class DeterministicDrafter(Drafter):
    """A drafter that always guesses the same after the same tokens: write `draft`, nothing else.

    Its q is a point mass: a guess x is accepted with probability p(x), and the residual is p without x.
    """

    @abstractmethod
    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return at most `budget` guesses for what follows `tokens`; an empty list is legal."""

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (others need it)
        """Begin a batch; nothing is kept between steps."""
        return _DeterministicSession(self)


class _DeterministicSession(DraftSession):
    def __init__(self, drafter: DeterministicDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        pairs = zip(request.tokens, request.budget, strict=True)
        return Proposal.from_rows([self._drafter.draft(row, n) if n else () for row, n in pairs])


class AutoregressiveDrafter(Drafter):
    """A drafter that scores the next token after a prefix: write `logits`, nothing else.

    The core standardises the logits, draws and records q.
    """

    @abstractmethod
    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` of the token that follows `prefix`."""

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (others need it)
        """Begin a batch; nothing is kept between steps."""
        return _AutoregressiveSession(self)


class _AutoregressiveSession(DraftSession):
    def __init__(self, drafter: AutoregressiveDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        import torch

        prefixes = [list(row) for row in request.tokens]
        while request.wants_more():
            drawn = request.sample(torch.stack([self._drafter.logits(prefix) for prefix in prefixes]))
            for prefix, token in zip(prefixes, drawn.tolist(), strict=True):
                prefix.append(token)
        return request.proposal()
