"""A drafter whose calls wait for the device, so that their time is its own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from specdec_core.models.device import synchronize


class SynchronizedDrafter(Drafter):
    """Synchronises the device after each draft, so that its time is not charged to the target.

    Args:
        drafter: The drafter.
        wait: Waits until the device is idle.
    """

    def __init__(self, drafter: Drafter, wait: Callable[[], None]) -> None:
        super().__init__(drafter.config, drafter.target)
        self.needs_hidden_states = drafter.needs_hidden_states
        self.hidden_layers = drafter.hidden_layers
        self.remembers = drafter.remembers
        self._drafter, self._wait = drafter, wait

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch."""
        return _SynchronizedSession(self._drafter.open(session), self._wait)

    def reset(self) -> None:
        """Have the drafter forget what requests taught."""
        self._drafter.reset()


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

    def close(self) -> None:
        self._session.close()


def synchronized(drafter: Drafter, device: torch.device) -> Drafter:
    """Return the drafter, synchronised if the device computes asynchronously."""
    if device.type == "cpu":
        return drafter
    return SynchronizedDrafter(drafter, lambda: synchronize(device))
