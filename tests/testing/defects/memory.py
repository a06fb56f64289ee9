"""Drafters that keep knowledge between requests, and get wrong what goes with it."""

from __future__ import annotations

import threading

from specdec_core.interface import DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from tests.testing.defects.healthy import Remembers


class SaysNothing(Remembers):
    """Does not declare it, like a cache that was added to a finished drafter."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.remembers = False


class ForgetsNothing(Remembers):
    """Declares `remembers`, and leaves `reset` as it is inherited."""

    def reset(self) -> None:
        pass


class ReadsOn(Remembers):
    """Its sessions look at what is known now, not at what was known when they were opened."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _ReadsOnSession(self, super().open(session))


class _ReadsOnSession(DraftSession):
    def __init__(self, drafter: Remembers, inner: DraftSession) -> None:
        self.drafter, self.inner = drafter, inner

    def propose(self, request: DraftRequest) -> Proposal:
        self.inner.known = self.drafter.known  # type: ignore[attr-defined]
        return self.inner.propose(request)

    def close(self) -> None:
        self.inner.close()


class OneThread(Remembers):
    """Works in the thread that it was made in, as a connection to a database does."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.thread = threading.get_ident()

    def open(self, session: SessionInfo) -> DraftSession:
        if threading.get_ident() != self.thread:
            raise RuntimeError("objects created in a thread can only be used in that same thread")
        return super().open(session)
