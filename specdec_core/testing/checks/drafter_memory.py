"""Checks of drafters that keep knowledge between requests, and of those that do so without saying it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from specdec_core.interface import Drafter
from specdec_core.testing.checks.drafter_proposals import ROWS
from specdec_core.testing.checks.drafter_state import require_same_drafts
from specdec_core.testing.harness.drafts import Draft
from specdec_core.testing.harness.session_driver import SessionDriver
from specdec_core.testing.harness.tiny_target import TinyTarget
from specdec_core.testing.registration import check
from specdec_core.testing.subject import DrafterSubject

_STEPS, _THREADS = 4, 4


def remembers(subject: DrafterSubject) -> str | None:
    """Return why a check of a drafter without memory does not apply."""
    if any(subject.drafter(target).remembers for target in subject.targets):
        return "it declares `remembers`"
    return None


def no_memory(subject: DrafterSubject) -> str | None:
    """Return why a check of memory does not apply."""
    return None if remembers(subject) else "it does not declare `remembers`"


def _opened(subject: DrafterSubject, target: TinyTarget, drafter: Drafter, first: int = 0) -> SessionDriver:
    """Open a session over a row, with whatever the drafter knows."""
    row = list(ROWS[first % len(ROWS)])
    return SessionDriver(target, drafter, [target.begin(row)], sources=[row], seed=subject.seed, primed=False)


def _step(driver: SessionDriver, number: int) -> list[Draft]:
    drafts = driver.draft([4], seed=number)
    driver.accept([number % 3], [2 + number % 3])
    return drafts


def _decode(driver: SessionDriver) -> None:
    for number in range(_STEPS):
        _step(driver, number)
    driver.close()


def _require_as_new(subject: DrafterSubject, target: TinyTarget, used: Drafter, hint: str) -> None:
    """Fail unless a drafter drafts as a new one along a text that it has drafted for before."""
    now, first = _opened(subject, target, used), _opened(subject, target, subject.fresh(target))
    for number in range(_STEPS):
        got, expected = _step(now, number), _step(first, number)
        require_same_drafts(now, got, expected, "the draft of a new drafter", hint)
    now.close()
    first.close()


@check("remembers-declared", kind="drafter", skip_if=remembers)
def remembers_declared(subject: DrafterSubject) -> None:
    """Earlier texts change its drafts only if it declares so.

    It drafts for a text as a new drafter would, although it has drafted for the same text before.
    """
    for target in subject.targets:
        used = subject.fresh(target)
        for first in (*range(len(ROWS)), 0):
            _decode(_opened(subject, target, used, first))
        _require_as_new(
            subject,
            target,
            used,
            "A drafter that is meant to keep knowledge between requests declares `remembers = True` and forgets "
            "in `reset()`. Otherwise keep what changes in the session.",
        )


@check("reset-forgets", kind="drafter", skip_if=no_memory)
def reset_forgets(subject: DrafterSubject) -> None:
    """After `reset` it drafts like a new drafter."""
    for target in subject.targets:
        used = subject.fresh(target)
        for first in range(len(ROWS)):
            _decode(_opened(subject, target, used, first))
        used.reset()
        _require_as_new(subject, target, used, "`reset()` must drop everything that sessions have taught.")


@check("snapshot-kept", kind="drafter", skip_if=no_memory)
def snapshot_kept(subject: DrafterSubject) -> None:
    """Closed sessions and `reset` do not change open sessions.

    The drafts of an open session do not change when other sessions are closed, or the drafter is reset.
    """
    for target in subject.targets:
        drafter = subject.fresh(target)
        undisturbed, disturbed = (SessionDriver(target, drafter, *_row(target), seed=subject.seed) for _ in "ab")
        expected = [_step(undisturbed, number) for number in range(_STEPS)]
        for number, own in enumerate(expected):
            _decode(_opened(subject, target, drafter, number))
            if number == _STEPS - 1:
                drafter.reset()
            require_same_drafts(
                disturbed,
                _step(disturbed, number),
                own,
                "its draft while no other session was closed",
                "A session reads a snapshot of when it was opened. Replace what it refers to; do not change it.",
            )
        undisturbed.close()
        disturbed.close()


def _row(target: TinyTarget) -> tuple[list[list[int]]]:
    return ([target.begin()],)


@check("learns-in-threads", kind="drafter", skip_if=no_memory)
def learns_in_threads(subject: DrafterSubject) -> None:
    """Sessions in several threads can teach it.

    Sessions of several threads teach it at the same time, and `reset` forgets all of it.
    """
    times = subject.times(8, 2, "sessions of each thread")
    for target in subject.targets:
        drafter = subject.fresh(target)

        def work(thread: int, target: TinyTarget = target, drafter: Drafter = drafter) -> None:
            for number in range(times):
                _decode(_opened(subject, target, drafter, thread + number))

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))  # raises what a thread raised
        drafter.reset()
        _require_as_new(subject, target, drafter, "Learn and reset under one lock.")
