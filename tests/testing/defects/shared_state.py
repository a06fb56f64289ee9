"""Drafters whose sessions share state or leak it."""

from __future__ import annotations

from typing import ClassVar

import torch

from specdec_core.interface import DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from tests.testing.defects.healthy import Cached, CachedSession


class OneStateForAllRows(Cached):
    """All rows share the cache of the first.

    Seen in drafters that were written for one sequence, and then given a batch.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        made = CachedSession(self, session.batch_size)
        made.rows = [made.rows[0]] * session.batch_size
        return made


class OneStateForAllSessions(Cached):
    """The cache is the drafter's, and not the session's: a second batch reads on in that of the first.

    Seen in class variables, and in objects that were made for one call and then reused.
    """

    rows: ClassVar[dict[int, list[list[int]]]] = {}

    def open(self, session: SessionInfo) -> DraftSession:
        made = CachedSession(self, session.batch_size)
        made.rows = self.rows.setdefault(session.batch_size, made.rows)
        return made


class ForgetsToClean(Cached):
    """A batch takes over the cache of one that was closed, with what stands in it.

    Seen where buffers are pooled, and only the happy end of a batch empties them.
    """

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.pool: list[list[list[int]]] = []

    def open(self, session: SessionInfo) -> DraftSession:
        made = _PooledSession(self, session.batch_size)
        if self.pool:
            left = self.pool.pop()
            made.rows = (left + made.rows)[: session.batch_size]
        return made


class _PooledSession(CachedSession):
    drafter: ForgetsToClean

    def close(self) -> None:
        self.drafter.pool.append(self.rows)


class NeverFrees(Cached):
    """Keeps every session for good, so that memory grows with every batch."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.sessions: list[DraftSession] = []

    def open(self, session: SessionInfo) -> DraftSession:
        self.sessions.append(super().open(session))
        return self.sessions[-1]


class FailsToClose(Cached):
    """Frees what it made at the first request, and fails where there was none."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _FailsToCloseSession(self, session.batch_size)


class _FailsToCloseSession(CachedSession):
    def propose(self, request: DraftRequest) -> Proposal:
        self.cache = list(self.rows)
        return super().propose(request)

    def close(self) -> None:
        del self.cache


class KeepsSources(Cached):
    """Keeps something of every source that an encoder has read, so that memory grows with every batch there."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.read: list[torch.Tensor] = []

    def open(self, session: SessionInfo) -> DraftSession:
        self.read += [torch.tensor(source) for source in session.sources or ()]
        return super().open(session)
