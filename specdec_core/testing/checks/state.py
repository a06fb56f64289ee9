"""Checks of a session's state: after any commit, it drafts like a fresh session on the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdec_core.interface import Drafter
from specdec_core.testing.checks.drafter import ROWS, SETTINGS, DrafterChecks, require_same_drafts
from specdec_core.testing.harness.session_driver import SessionDriver
from specdec_core.testing.harness.tiny_target import EOS, VOCAB, TinyTarget

_HINT = (
    "Only `commit` says what was accepted. `outcome.committed` has the new tokens of each row, also after steps "
    "in which nothing of this drafter was verified (`drafted` is 0)."
)
_STEPS, _THREADS = 4, 4


class StateChecks(DrafterChecks):
    """Checks of what a session, and a drafter, keeps."""

    def _after_each(self, step: Callable[[SessionDriver, int], None]) -> None:
        """Repeat a step, and compare with a fresh session after each."""
        for driver in self.sessions():
            require_as_fresh(driver, self.seed)
            for number in range(_STEPS):
                step(driver, number)
                require_as_fresh(driver, self.seed + 1 + number)

    def test_accepted(self) -> None:
        """No stale state after a draft is accepted, rejected, or accepted in part."""

        def accept(driver: SessionDriver, number: int) -> None:
            some = ([9] * 4, [0] * 4, [1, 2, 3, 4], [3, 0, 4, 1])[number]
            driver.accept(some, _next_tokens(driver, number))

        self._after_each(accept)

    def test_others_drafts(self) -> None:
        """No stale state after steps without its draft, or with another drafter's, in all rows or some."""

        def others(driver: SessionDriver, number: int) -> None:
            new = _next_tokens(driver, number)
            if number == 0:
                driver.accept([1] * len(new), new)
                driver.commit_unused([[token] for token in new])
            elif number == 1:
                driver.commit_unused([[4, 0, token] for token in new])
            else:
                mine = [(row + number) % 2 == 0 for row in range(len(new))]
                tails = [(token,) if own else (3, 5, token) for token, own in zip(new, mine, strict=True)]
                driver.commit_drafts([2] * len(new), tails, mine)

        self._after_each(others)

    def test_joins_later(self) -> None:
        """No stale state if it is not used in the first steps."""
        for driver in self.sessions():
            for number in range(2):
                driver.commit_unused([[token] for token in _next_tokens(driver, number)])
            require_as_fresh(driver, self.seed)

    def test_waiting_rows(self) -> None:
        """No stale state after budgets of 0 in some rows."""

        def waiting(driver: SessionDriver, number: int) -> None:
            batch = len(driver.rows)
            driver.accept([2] * batch, _next_tokens(driver, number))
            driver.draft([0 if row % 2 == number % 2 else 3 for row in range(batch)])
            driver.accept([1] * batch, _next_tokens(driver, number + 1))

        self._after_each(waiting)

    def test_rows_finished(self) -> None:
        """No stale state after some rows have ended."""
        for driver in self.sessions():
            batch = len(driver.rows)
            require_as_fresh(driver, self.seed)
            for number in range(batch - 1):
                ended = [row == number for row in range(batch)]
                driver.accept([1] * batch, _next_tokens(driver, number), finished=ended)
                require_as_fresh(driver, self.seed + 1 + number)

    def test_eos_inside_draft(self) -> None:
        """No stale state after a row ends inside its draft, with fewer tokens committed than accepted."""
        for driver in self.sessions():
            batch = len(driver.rows)
            for row in range(batch):
                drafts = driver.draft([0 if over else 4 for over in driver.finished])
                # The row's first draft token ends it, and the rest of the draft is cut.
                ended = list(driver.finished)
                ended[row] = ended[row] or len(drafts[row].tokens) > 0
                counts = [0 if over else 1 if index == row else 4 for index, over in enumerate(driver.finished)]
                driver.finished[row] = True
                driver.commit_drafts(counts, [() if over else (3,) for over in ended])
                if not all(driver.finished):
                    require_as_fresh(driver, self.seed + row)
                    driver.accept([0] * batch, [2] * batch)

    def test_long_drafts(self) -> None:
        """No stale state with `max_gamma` 1 and 12."""
        for gamma in (1, 12):
            for driver in self.sessions(settings=SETTINGS[:1], max_gamma=gamma):
                batch = len(driver.rows)
                for _ in range(3):
                    driver.draft([gamma] * batch)
                    driver.accept([gamma] * batch, [3] * batch)
                require_as_fresh(driver, self.seed)

    def test_many_steps(self) -> None:
        """No stale state after a dozen random steps."""
        rng = random.Random(self.seed)
        for driver in self.sessions():
            batch = len(driver.rows)
            for number in range(12):
                if rng.random() < 0.25:
                    driver.commit_unused([[rng.randrange(2, VOCAB)] for _ in range(batch)])
                else:
                    driver.draft([rng.randrange(5) for _ in range(batch)])
                    driver.accept([rng.randrange(5) for _ in range(batch)], _next_tokens(driver, number))
            require_as_fresh(driver, self.seed)

    def test_rollback(self) -> None:
        """No stale state after commits are rolled back, as inside a hierarchy."""

        def back(driver: SessionDriver, number: int) -> None:
            batch = len(driver.rows)
            before = [len(row) for row in driver.rows]
            driver.accept([3] * batch, _next_tokens(driver, number))
            for more in range(1 + number):
                driver.draft([2] * batch)
                over = [(number + row) % 2 == 0 for row in range(batch)] if more == number else None
                driver.accept([number % 3] * batch, _next_tokens(driver, number + 1), finished=over)
            far = [n + (number + row) % 3 for row, n in enumerate(before)]
            driver.rollback([min(n, len(row)) for n, row in zip(far, driver.rows, strict=True)])
            driver.finished = [False] * batch  # rows that had ended here may go on in the outer loop
            # Two, since the last token is not read before the next draft.
            driver.commit_unused(list(zip(*(_next_tokens(driver, number + n) for n in (2, 3)), strict=True)))

        self._after_each(back)

    def test_earlier_sessions_forgotten(self) -> None:
        """It drafts as when it was new, whatever it drafted for before; unless it declares `remembers`."""
        if self.remembers:
            pytest.skip("it declares `remembers`")
        for target in self.targets:
            used = self.fresh(target)
            for first in (*range(len(ROWS)), 0):
                self._decode(target, used, first)
            for budget in ([4] * 4, [0] * 4, [0, 1, 2, 0]):  # closed in mid-step
                driver = self.open(target, used)
                for accepted in range(3):
                    driver.draft(budget)
                    driver.accept([accepted] * 4, [2] * 4)
                driver.draft(budget)
                driver.close()
            hint = (
                "Keep what changes while a batch is decoded in the session. A drafter that is meant to keep "
                "knowledge between requests declares `remembers = True`, and forgets in `reset()`."
            )
            self._require_as_new(target, used, hint)

    def test_reset_forgets(self) -> None:
        """After `reset` it drafts like a new drafter, also if sessions of several threads taught it."""
        self._skip_unless_it_remembers()
        for target in self.targets:
            drafter = self.fresh(target)

            def work(thread: int, target: TinyTarget = target, drafter: Drafter = drafter) -> None:
                for number in range(8):
                    self._decode(target, drafter, thread + number)

            work(0)
            drafter.reset()
            self._require_as_new(target, drafter, "`reset()` must drop everything that sessions have taught.")
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(work, range(_THREADS)))  # raises what a thread raised
            drafter.reset()
            self._require_as_new(target, drafter, "Learn and reset under one lock.")

    def test_snapshot_kept(self) -> None:
        """Closed sessions and `reset` do not change open sessions."""
        self._skip_unless_it_remembers()
        for target in self.targets:
            drafter = self.fresh(target)
            undisturbed, disturbed = (self.open(target, drafter, ROWS[:1]) for _ in "ab")
            expected = [undisturbed.step(number, number) for number in range(_STEPS)]
            for number, own in enumerate(expected):
                self._decode(target, drafter, number)
                if number == _STEPS - 1:
                    drafter.reset()
                what = "its draft while no other session was closed"
                hint = "A session reads a snapshot of when it was opened: replace it, do not change it."
                require_same_drafts(disturbed, disturbed.step(number, number), own, what, hint)
            undisturbed.close()
            disturbed.close()

    def _skip_unless_it_remembers(self) -> None:
        if not self.remembers:
            pytest.skip("it does not declare `remembers`")

    def _decode(self, target: TinyTarget, drafter: Drafter, first: int) -> None:
        """Draft for one of the rows in a session of its own."""
        driver = self.open(target, drafter, [ROWS[first % len(ROWS)]], primed=False)
        for number in range(_STEPS):
            driver.step(number, number)
        driver.close()

    def _require_as_new(self, target: TinyTarget, used: Drafter, hint: str) -> None:
        """Fail unless a drafter drafts as a new one for texts that it has drafted for before."""
        now, first = (self.open(target, one, primed=False) for one in (used, self.fresh(target)))
        for number in range(_STEPS):
            got, expected = now.step(number, number), first.step(number, number)
            require_same_drafts(now, got, expected, "the draft of a new drafter", hint)
        now.close()
        first.close()


def require_as_fresh(driver: SessionDriver, seed: int) -> None:
    """Fail unless a session drafts the same as a fresh one on the same tokens."""
    budget = [0 if over else driver.info.max_gamma for over in driver.finished]
    used = driver.draft(budget, seed=seed)
    other = driver.reopen()
    fresh = other.draft(budget, seed=seed)
    other.close()
    require_same_drafts(driver, used, fresh, "the draft of a fresh session on the same tokens", _HINT)


def _next_tokens(driver: SessionDriver, number: int) -> list[int]:
    """Return a next token for each row; none ends the sequence."""
    tokens = [token for token in range(VOCAB) if token != EOS]
    return [tokens[(number * 2 + row) % len(tokens)] for row in range(len(driver.rows))]
