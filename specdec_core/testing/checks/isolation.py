"""Checks of isolation: rows and sessions are independent, and inputs and global state stay unchanged."""

from __future__ import annotations

import copy
import gc
import threading
from dataclasses import replace

import torch
from pydantic import BaseModel

from specdec_core.interface import Drafter
from specdec_core.testing.checks.drafter import ROWS, SETTINGS, DrafterChecks, require_same_drafts
from specdec_core.testing.failures import CheckFailure
from specdec_core.testing.harness.session_driver import Draft, SessionDriver
from specdec_core.testing.harness.state import frozen_heap, global_state, is_leaked, tensor_bytes
from specdec_core.testing.harness.tiny_target import TinyTarget

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
                    _require_same(driver, row, batched[row], alone.step(step)[0], "the row's draft alone")
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
                _require_same(other, row, uneven[row], even[row], "its draft when all budgets are equal")

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
                    together = [draft.tokens for draft in driver.step(step)]
                    if together != [draft.tokens for draft in drafts[step]]:
                        got = f"with another session open, the drafts {together}"
                        expected = f"its drafts without one: {[draft.tokens for draft in drafts[step]]}"
                        raise driver.failure(got, expected, _STATE_HINT)
            for driver in both:
                driver.close()

    def test_inputs_unchanged(self) -> None:
        """It does not modify its inputs."""
        for driver in self.sessions(settings=SETTINGS[:1]):
            for step in range(4):
                driver.step(step)  # to change the tokens or the sources raises
                if driver.hidden is not None and not torch.equal(*driver.hidden):
                    hint = "They belong to the core and are read-only. Copy them first: `hidden.clone()`."
                    raise driver.failure("after propose(): changed hidden states", "unchanged hidden states", hint)

    def test_target_unchanged(self) -> None:
        """It modifies neither its config and target info, nor the target's model and tokenizer."""
        for target in self.targets:
            drafter = self.fresh(target)
            before = _attributes(drafter)
            driver = self.open(target, drafter)
            for step in range(4):
                driver.step(step)
            driver.close()
            after = _attributes(drafter)
            for name, value in before.items():
                if after[name] != value:
                    raise driver.failure(f"drafter.{name} = {after[name]!r}", f"as when it was built: {value!r}")
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
            drafter = self.drafter(target)
            with frozen_heap():
                self._require_freed(target, drafter)

    def _require_freed(self, target: TinyTarget, drafter: Drafter) -> None:
        sizes = []
        for _ in range(2):
            for _ in range(2):
                driver = self.open(target, drafter)
                for step in range(4):
                    driver.step(step)
                driver.close()
                session, log = driver.session, driver.log
                del driver
                if is_leaked(session):
                    got = "the session is still alive: something refers to it"
                    raise CheckFailure(f"{log}\nreleased it", got, "no reference to it", _MEMORY_HINT)
            sizes.append(tensor_bytes())
        if sizes[1] > sizes[0]:
            raise CheckFailure(
                f"{log}\ndid the same four times in all",
                f"{sizes[1] - sizes[0]} more bytes of tensors alive after four sessions than after two",
                "no more: closed sessions leave nothing behind",
                _MEMORY_HINT,
            )


def _require_same(driver: SessionDriver, row: int, got: Draft, expected: Draft, what: str) -> None:
    """Fail unless a row drafted these tokens, with this q."""
    others = [Draft((), ())] * row
    require_same_drafts(driver, [*others, got], [*others, expected], what)
    if got.tokens != expected.tokens:
        raise driver.failure(f"row {row}: the draft {list(got.tokens)}", f"{what}: {list(expected.tokens)}")


def _attributes(drafter: Drafter) -> dict[str, object]:
    """Return copies of a drafter's config and target info."""
    config = drafter.config
    return {
        "config": config.model_dump() if isinstance(config, BaseModel) else copy.copy(config),
        "target": copy.copy(drafter.target),
    }


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
