"""Drafters and controllers for tests: each takes one path through the core."""

import itertools
import threading
from collections.abc import Sequence

import numpy as np
import torch

from specdec_core.interface import (
    BatchInfo,
    Candidates,
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
from specdec_core.sampling.generators import draw
from specdec_core.testing.harness.toys import Gamma as Gamma
from specdec_core.testing.harness.toys import TableDrafter as TableDrafter

NO_CONFIG = PluginConfig()


def target_info(vocab: int) -> TargetInfo:
    """Return the target info that a toy gets."""
    return TargetInfo(vocab_size=vocab)


class CountingDrafter(DeterministicDrafter):
    """Counts on from the last token, as far as its budget goes."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [(tokens[-1] + 1 + n) % self.target.vocab_size for n in range(budget)]


class MostlyRight(CountingDrafter):
    """Drafts the texts that it is given, with every third token wrong, to reject at every position."""

    def __init__(self, texts: Sequence[list[int]], vocab: int = 40) -> None:
        super().__init__(vocab)
        self.texts = texts

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        begin = len(tokens)
        text = next((text for text in self.texts if text[:begin] == list(tokens)), [])
        right = enumerate(text[begin : begin + budget], begin)
        return [token if n % 3 else (token + 1) % self.target.vocab_size for n, token in right]


class Noting(CountingDrafter):
    """Notes the metadata of each session."""

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab)
        self.seen: list[list[object]] = []

    def open(self, session: SessionInfo) -> DraftSession:
        self.seen.append(list(session.metadata))
        return super().open(session)


class RememberingDrafter(Drafter):
    """Proposes what followed the last token in the latest request that held it.

    Args:
        vocab: V.
        declared: Whether it says that it remembers.
    """

    def __init__(self, vocab: int, *, declared: bool = True) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))
        self.remembers = declared
        self.known: dict[int, int] = {}
        self.resets = 0
        self._lock = threading.Lock()

    def open(self, session: SessionInfo) -> DraftSession:
        return _RememberingSession(self)

    def learn(self, rows: Sequence[Sequence[int]]) -> None:
        with self._lock:
            self.known = {**self.known, **{a: b for row in rows for a, b in itertools.pairwise(row)}}

    def reset(self) -> None:
        with self._lock:
            self.known = {}
            self.resets += 1


class _RememberingSession(DraftSession):
    def __init__(self, drafter: RememberingDrafter) -> None:
        self.drafter, self.known = drafter, drafter.known
        self.rows: Sequence[Sequence[int]] = ()

    def propose(self, request: DraftRequest) -> Proposal:
        self.rows = request.tokens
        return Proposal.from_rows(
            [self._draft(row[-1], n) for row, n in zip(self.rows, request.budget, strict=True)]
        )

    def _draft(self, token: int, budget: int) -> list[int]:
        draft: list[int] = []
        while len(draft) < budget and token in self.known:
            token = self.known[token]
            draft.append(token)
        return draft

    def close(self) -> None:
        self.drafter.learn(self.rows)


class CandidatesDrafter(Drafter):
    """Draws from one or two candidates after each token; the target emits others, too."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))
        ids = [sorted({token, (token * 3 + 1) % vocab} if token % 3 else {token}) for token in range(vocab)]
        self.rows = [Candidates(np.array(some), np.array([0.5, -0.7])[: len(some)]) for some in ids]

    def open(self, session: SessionInfo) -> DraftSession:
        return _CandidatesSession(self.rows)


class _CandidatesSession(DraftSession):
    def __init__(self, rows: Sequence[Candidates]) -> None:
        self.rows = rows

    def propose(self, request: DraftRequest) -> Proposal:
        last = [row[-1] for row in request.tokens]
        while request.wants_more():
            last = request.sample_candidates([self.rows[token] for token in last])
        return request.proposal()


class DrawnDrafter(Drafter):
    """Lets the request draw from probabilities that are far from uniform."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))
        numbers = torch.arange(vocab * vocab, dtype=torch.float32).view(vocab, vocab)
        self.table = torch.softmax(3 * torch.sin(numbers), dim=-1)

    def open(self, session: SessionInfo) -> DraftSession:
        return _DrawnSession(self.table)


class _DrawnSession(DraftSession):
    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def propose(self, request: DraftRequest) -> Proposal:
        last = torch.tensor([row[-1] for row in request.tokens])
        while request.wants_more():
            last = request.draw(self.table[last])
        return request.proposal()


class SparseDrafter(Drafter):
    """Draws from two ids with probabilities 0.3 and 0.7, with its own generator, and returns that as q."""

    def __init__(self, vocab: int) -> None:
        super().__init__(NO_CONFIG, target_info(vocab))
        # It belongs to the drafter: sessions that all drew the same numbers would be no sample of q.
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
    """Always the same l."""

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
