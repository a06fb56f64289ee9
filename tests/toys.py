"""Drafters and controllers for tests: each takes one path through the core."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec_core.border import (
    BatchInfo,
    DeterministicDrafter,
    Drafter,
    DraftRequest,
    DraftSession,
    LenienceController,
    LenienceSession,
    PluginConfig,
    Proposal,
    SessionInfo,
    Sparse,
    TargetInfo,
)
from specdec_core.randomness import draw
from specdec_core.testing.instruments.parts import Gamma, TableDrafter

__all__ = [
    "NO_CONFIG",
    "CountingDrafter",
    "Gamma",
    "Lenience",
    "SparseDrafter",
    "TableDrafter",
    "target_info",
]

NO_CONFIG = PluginConfig()


def target_info(vocab: int) -> TargetInfo:
    """What a toy is told of its target."""
    return TargetInfo(vocab_size=vocab)


class CountingDrafter(DeterministicDrafter):
    """Guesses the next numbers, as many as it may."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [(tokens[-1] + 1 + n) % self.target.vocab_size for n in range(budget)]


class SparseDrafter(Drafter):
    """Draws from two ids with probabilities 0.3 and 0.7 by itself, and says so; rows differ in length."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))
        # Of the drafter, not of a session: sessions that all drew alike would be no sample of q.
        self.generator = torch.Generator().manual_seed(11)

    def open(self, session: SessionInfo) -> DraftSession:
        return _SparseSession(self.target.vocab_size, self.generator)


class _SparseSession(DraftSession):
    def __init__(self, vocab: int, generator: torch.Generator) -> None:
        self.vocab = vocab
        self.generator = generator

    def propose(self, request: DraftRequest) -> Proposal:
        batch, width = len(request.budget), max(request.budget)
        ids = torch.randint(0, self.vocab - 1, (batch, width, 1), generator=self.generator)
        ids = torch.cat([ids, ids + 1], dim=2)
        weights = torch.tensor([0.3, 0.7]).expand(batch, width, 2)
        numbers = torch.rand(batch * width, generator=self.generator, dtype=torch.float64)
        which = draw(weights.reshape(-1, 2), numbers).view(batch, width, 1)
        return Proposal(ids.gather(2, which)[..., 0], request.budget, Sparse(ids, weights))


class Lenience(LenienceController):
    """The same l always."""

    def __init__(self, value: float) -> None:
        super().__init__(NO_CONFIG)
        self.value = value

    def open(self, batch: BatchInfo) -> LenienceSession:
        session = _LenienceSession()
        session.values = [self.value] * batch.batch_size
        return session


class _LenienceSession(LenienceSession):
    values: Sequence[float]

    def lenience(self) -> Sequence[float]:
        return self.values
