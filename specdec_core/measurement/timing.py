"""Time steps by the length of their draft: T(k), the drafter's time, and c."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specdec_core.decoding.timing import Medians, filled, filled_spreads
from specdec_core.interface import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from specdec_core.measurement.file import StepSeconds
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


@dataclass(frozen=True)
class Timing:
    """The times of steps.

    Attributes:
        seconds: Times by draft length.
        c: Cost coefficient (Definition 3.7).
        timed: The draft lengths that occurred often enough to be timed.
    """

    seconds: StepSeconds
    c: float
    timed: tuple[int, ...]


def timing_of(medians: Medians, gamma: int, others: Medians | None = None) -> Timing:
    """Return the times for every length up to gamma; lengths that did not occur are interpolated.

    Args:
        medians: Of steps with this drafter.
        gamma: The longest draft.
        others: Of steps with other drafts; their T(k) is used for lengths that did not occur.
    """
    others = others or Medians({}, {}, 0.0)
    draft = filled(medians.draft, gamma)
    verified = filled({**others.verify, **medians.verify}, gamma)
    step = tuple(one + other + medians.rest for one, other in zip(draft, verified, strict=True))
    seconds = StepSeconds(
        draft=draft,
        verify=verified,
        step=step,
        draft_spread=filled_spreads(medians.draft_spread, gamma),
        verify_spread=filled_spreads({**others.verify_spread, **medians.verify_spread}, gamma),
    )
    return Timing(seconds, _cost(medians), tuple(sorted(medians.draft)))


def _cost(medians: Medians) -> float:
    """The c that fits k * c to the time of drafting k tokens: least squares through the origin."""
    squares = sum(k * k for k in medians.draft)
    return sum(k * value for k, value in medians.draft.items()) / squares / medians.verify[0] if squares else 0.0
