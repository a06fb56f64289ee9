"""A drafter whose calls wait for the device, so that their time is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from specdec_core.interface import (
    CompositeDrafter,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    Proposal,
    SessionInfo,
)
from specdec_core.models.device import synchronize


class SynchronizedDrafter(CompositeDrafter):
    """Synchronizes the device after each draft, so that its time is not charged to the target.

    Args:
        drafter: The drafter.
        wait: Waits until the device is idle.
    """

    def __init__(self, drafter: Drafter, wait: Callable[[], None]) -> None:
        super().__init__(drafter.config, drafter.target, [drafter])
        self.drafts_trees, self.autoregressive = drafter.drafts_trees, drafter.autoregressive
        self._drafter, self._wait = drafter, wait

    def ready(self, hidden_states: Mapping[int, Tensor]) -> bool:
        """Return whether the drafter can be asked."""
        return self._drafter.ready(hidden_states)

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch."""
        return _SynchronizedSession(self._drafter.open(session), self._wait)


class _SynchronizedSession(DraftSession):
    def __init__(self, session: DraftSession, wait: Callable[[], None]) -> None:
        self._session, self._wait = session, wait

    def propose(self, request: DraftRequest) -> Proposal:
        made = self._session.propose(request)
        self._wait()
        return made

    def commit(self, outcome: Outcome) -> None:
        self._session.commit(outcome)
        self._wait()

    def rollback(self, lengths: Sequence[int]) -> None:
        self._session.rollback(lengths)

    def close(self) -> None:
        self._session.close()


def synchronized(drafter: Drafter, device: torch.device) -> Drafter:
    """Return the drafter, synchronized if the device computes asynchronously."""
    if device.type == "cpu":
        return drafter
    return SynchronizedDrafter(drafter, lambda: synchronize(device))
