"""Drafters that go wrong in trees only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec_core.interface import Dense, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from tests.testing.defects.healthy import Branching, Deterministic


class IgnoresTheDepth(Deterministic):
    """Fills the budget of a tree with one path, however long a path may be."""

    drafts_trees = True

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        if request.tree is None:
            return made
        rows = [[row[:length]] for row, length in zip(made.tokens.tolist(), made.lengths, strict=True)]
        return Proposal.from_continuations(rows, request.budget, request.budget)


class OneQForAllSiblings(Branching):
    """States for each node the q of its eldest sibling, though siblings were drawn without replacement."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        if request.tree is None or made.parents is None or not isinstance(made.q, Dense):
            return made
        q = made.q.probabilities.clone()
        for row, parents in enumerate(made.parents.tolist()):
            for node, parent in enumerate(parents):
                q[row, node] = q[row, parents.index(parent)]
        return replace(made, tokens=made.tokens.clone(), q=Dense(q))


class PrunesTheUnlikely(Branching):
    """Withholds a tree whose first token has a small q."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        if request.tree is None or not isinstance(made.q, Dense):
            return made
        first = made.q.probabilities[:, 0].gather(1, made.tokens[:, :1])[:, 0].tolist()
        kept = [0 if q < 0.4 else length for q, length in zip(first, made.lengths, strict=True)]
        return replace(made, lengths=tuple(kept))


class KeepsTheFirstNodes(Branching):
    """Takes the first tokens of a tree for the accepted ones, as they are in a line."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _KeepsTheFirstNodesSession(self, session.batch_size)


class _KeepsTheFirstNodesSession(DraftSession):
    def __init__(self, drafter: Branching, batch_size: int) -> None:
        self.drafter = drafter
        self.rows: list[list[int]] = [[] for _ in range(batch_size)]
        self.drafted: list[list[int]] = [[] for _ in range(batch_size)]

    def propose(self, request: DraftRequest) -> Proposal:
        for row, tokens in zip(self.rows, request.tokens, strict=True):
            row += tokens[len(row) :]  # what it takes to be new
        made = self.drafter.draft(self.rows, request)
        self.drafted = made.tokens.tolist()
        return made

    def commit(self, outcome: Outcome) -> None:
        for row, drafted, accepted in zip(self.rows, self.drafted, outcome.accepted, strict=True):
            row += drafted[:accepted] if any(outcome.drafted) and row else []

    def rollback(self, lengths: Sequence[int]) -> None:
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]
