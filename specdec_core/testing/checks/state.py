"""Checks of state and isolation.

After any commit, a session drafts like a fresh one on the same tokens. Rows and sessions are independent, and
inputs and global state stay unchanged.
"""

import copy
import gc
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from specdec_core.interface import Drafter
from specdec_core.testing.checks.drafter import ROWS, SETTINGS, DrafterChecks, require_same_drafts
from specdec_core.testing.failures import CheckFailure
from specdec_core.testing.harness.session_driver import SessionDriver
from specdec_core.testing.harness.state import frozen_heap, global_state, is_leaked, tensor_bytes
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
        """No stale state after a dozen random steps, and if it is not used in the first ones."""
        rng = random.Random(self.seed)
        for driver in self.sessions():
            for _ in range(2):
                driver.commit_unused([[rng.randrange(2, VOCAB)] for _ in driver.rows])
            require_as_fresh(driver, self.seed)
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


_STATE_HINT = "Keep what changes while a batch is decoded in the session, not in the drafter."
_MEMORY_HINT = "Keep what belongs to a batch in its session, and release in close() what other objects hold of it."
_TO_END = 0.5
"""Seconds that a thread may take to end after its session was closed."""


class IsolationChecks(DrafterChecks):
    """Checks of what a drafter must leave alone."""

    def test_rows_independent(self) -> None:
        """A row's drafts do not depend on the other rows."""
        for driver in self.sessions():
            together = [driver.step(step) for step in range(4)]
            for row, tokens in enumerate(driver.first_rows):
                sources = [driver.sources[row]]
                alone = replace(driver, rows=[list(tokens)], sources=sources, indices=[row], prefilled=False)
                for step, batched in enumerate(together):
                    what = f"the draft of row {row} alone"
                    require_same_drafts(driver, [batched[row]], alone.step(step), what, tokens=True)
                alone.close()

    def test_budgets_independent(self) -> None:
        """A row's drafts do not depend on other rows' budgets."""
        for driver in self.sessions():
            batch = len(driver.rows)
            driver.draft([3] * batch, seed=self.seed)
            driver.accept([0] * batch, [2] * batch)
            even = driver.draft([3] * batch, seed=self.seed)
            for row in range(batch):
                other = driver.reopen()
                budget = [3 if one == row else (0, 1, 4)[(one + row) % 3] for one in range(batch)]
                uneven = other.draft(budget, seed=self.seed)
                other.close()
                what = f"the draft of row {row} when all budgets are equal"
                require_same_drafts(other, [uneven[row]], [even[row]], what, tokens=True)

    def test_sessions_independent(self) -> None:
        """Open sessions do not affect each other."""
        for target, setting in self.cases():
            alone = []
            for rows in (ROWS[:2], ROWS[2:]):
                driver = self.open(target, None, rows, setting)
                alone.append([driver.step(step) for step in range(4)])
                driver.close()
            both = [self.open(target, None, rows, setting) for rows in (ROWS[:2], ROWS[2:])]
            for step in range(4):
                for driver, drafts in zip(both, alone, strict=True):
                    what = "its draft without another session"
                    require_same_drafts(driver, driver.step(step), drafts[step], what, _STATE_HINT, tokens=True)
            for driver in both:
                driver.close()

    def test_inputs_unchanged(self) -> None:
        """It modifies neither its inputs and settings, nor the target's model and tokenizer."""
        for target in self.targets:
            drafter = self.fresh(target)
            config, info = repr(drafter.config), copy.copy(drafter.target)
            driver = self.open(target, drafter)
            for step in range(4):
                driver.step(step)  # to change the tokens or the sources raises
                if driver.hidden is not None and not torch.equal(*driver.hidden):
                    hint = "They belong to the core and are read-only. Copy them first: `hidden.clone()`."
                    raise driver.failure("after propose(): changed hidden states", "unchanged hidden states", hint)
            driver.close()
            if repr(drafter.config) != config:
                raise driver.failure(f"drafter.config = {drafter.config!r}", f"as when it was built: {config}")
            if drafter.target != info:
                raise driver.failure(f"drafter.target = {drafter.target!r}", f"as when it was built: {info!r}")
            names = target.changed()
            if names:
                raise driver.failure(f"changed in the target: {', '.join(names[:5])}", "an unchanged target")

    def test_global_state_unchanged(self) -> None:
        """It leaves random generators, torch's settings, the process and threads alone."""
        for target, setting in self.cases():
            before, threads = global_state(), set(threading.enumerate())
            drafter = self.fresh(target)
            self.require_globals_unchanged(f"built the drafter for {target}", before)
            driver = self.open(target, drafter, ROWS[:2], setting)
            for step in range(20):
                driver.step(step)
            driver.close()
            self.require_globals_unchanged(driver.log, before)
            _require_ended(threads, driver.log)

    def test_close_any_time(self) -> None:
        """A session can be closed before its first request, and in mid-step."""
        for driver in self.sessions(settings=SETTINGS[:1]):
            driver.reopen().close()
            interrupted = driver.reopen()
            interrupted.draft([3] * len(driver.rows))
            interrupted.close()

    def test_sessions_freed(self) -> None:
        """It does not keep closed sessions, or their tensors, alive."""
        for target in self.targets:
            drafter, sizes = self.drafter(target), []
            with frozen_heap():
                for number in range(4):
                    driver = self.open(target, drafter)
                    for step in range(4):
                        driver.step(step)
                    driver.close()
                    session, log = driver.session, driver.log
                    del driver
                    if is_leaked(session):
                        got = "the session is still alive: something refers to it"
                        raise CheckFailure(f"{log}\nreleased it", got, "no reference to it", _MEMORY_HINT)
                    if number % 2:
                        sizes.append(tensor_bytes())
            if sizes[1] > sizes[0]:
                raise CheckFailure(
                    f"{log}\ndid the same four times in all",
                    f"{sizes[1] - sizes[0]} more bytes of tensors alive after four sessions than after two",
                    "no more: closed sessions leave nothing behind",
                    _MEMORY_HINT,
                )


def _require_ended(before: set[threading.Thread], did: str) -> None:
    """Require that threads that were started since have ended, or end now that their session is closed."""
    gc.collect()
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(_TO_END)
    left = [thread.name for thread in started if thread.is_alive()]
    if left:
        hint = "End them in the session's close()."
        raise CheckFailure(did, f"threads that still run: {', '.join(left[:5])}", "none", hint)
