"""Checks of isolation: rows and sessions are independent, and inputs and global state stay unchanged."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from specdec_core.interface import Drafter
from specdec_core.registry.nesting import nested_settings
from specdec_core.testing.checks.drafter_memory import remembers
from specdec_core.testing.checks.drafter_proposals import (
    ROWS,
    drivers,
    drivers_for_all_settings,
    situations,
)
from specdec_core.testing.checks.drafter_state import require_same_drafts
from specdec_core.testing.harness.draft_settings import SETTINGS, Setting
from specdec_core.testing.harness.drafts import Draft
from specdec_core.testing.harness.session_driver import SessionDriver
from specdec_core.testing.harness.state import (
    changed_globals,
    frozen_heap,
    global_state,
    is_leaked,
    tensor_bytes,
    weak_reference,
)
from specdec_core.testing.harness.tiny_target import TinyTarget
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.subject import DrafterSubject, attributes_of

_STATE_HINT = (
    "Keep what changes while a batch is decoded in the session, not in the drafter. A drafter that is meant to "
    "keep knowledge between requests declares `remembers`."
)
_TO_END = 0.5
"""Seconds that a thread may take to end after its session was closed."""
_MEMORY_HINT = "Keep what belongs to a batch in its session, and release in close() what other objects hold of it."


def _drafts(driver: SessionDriver, steps: int = 4) -> Iterator[list[Draft]]:
    """Run some steps; yield each row's draft in each."""
    batch = len(driver.rows)
    for step in range(steps):
        yield driver.draft([4] * batch)
        driver.accept([step % 3] * batch, [2 + step % 3] * batch)


def _tokens(driver: SessionDriver, steps: int = 4) -> Iterator[list[tuple[int, ...]]]:
    """Run some steps; yield each row's draft tokens in each."""
    for drafts in _drafts(driver, steps):
        yield [draft.tokens for draft in drafts]


def _opened(
    subject: DrafterSubject,
    target: TinyTarget,
    drafter: Drafter,
    rows: Sequence[Sequence[int]] = ROWS,
    setting: Setting | None = None,
) -> SessionDriver:
    """Open a session over some rows."""
    some = [list(row) for row in rows[: subject.rows(len(rows))]]
    begins = [target.begin(row) for row in some]
    sampling, tree = (None, None) if setting is None else (setting.sampling, setting.tree)
    return SessionDriver(target, drafter, begins, sources=some, sampling=sampling, tree=tree, seed=subject.seed)


@check("rows-independent", kind="drafter")
def rows_independent(subject: DrafterSubject) -> None:
    """A row's results do not depend on other rows.

    A row's drafts do not depend on the other rows of the batch.
    """
    for driver in drivers_for_all_settings(subject):
        together = list(_drafts(driver))
        for row, tokens in enumerate(driver.first_rows):
            alone = SessionDriver(
                driver.target,
                subject.drafter(driver.target),
                [tokens],
                sources=[driver.sources[row]],
                sampling=driver.sampling,
                tree=driver.tree,
                seed=subject.seed,
                indices=[row],
            )
            for batched, (own,) in zip(together, _drafts(alone), strict=True):
                _require_same(driver, row, batched[row], own, "the row's draft alone")
            alone.close()


@check("budgets-independent", kind="drafter")
def budgets_independent(subject: DrafterSubject) -> None:
    """A row's drafts do not depend on other rows' budgets."""
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        even = driver.draft([3] * batch, seed=subject.seed)
        driver.accept([0] * batch, [2] * batch)
        even = driver.draft([3] * batch, seed=subject.seed)
        for row in range(batch):
            other = driver.reopen()
            budget = [3 if one == row else (0, 1, 4)[(one + row) % 3] for one in range(batch)]
            uneven = other.draft(budget, seed=subject.seed)
            other.close()
            _require_same(other, row, uneven[row], even[row], "its draft when all budgets are equal")


def _require_same(driver: SessionDriver, row: int, got: Draft, expected: Draft, what: str) -> None:
    """Fail unless a row drafted these tokens, with this q."""
    others = [Draft((), ())] * row
    require_same_drafts(driver, [*others, got], [*others, expected], what)
    if got.tokens != expected.tokens:
        raise driver.failure(f"row {row}: the draft {list(got.tokens)}", f"{what}: {list(expected.tokens)}")


@check("sessions-independent", kind="drafter")
def sessions_independent(subject: DrafterSubject) -> None:
    """Open sessions do not affect each other.

    Two sessions that are open at once draft the same as one after the other.
    """
    for name, target in situations(subject):
        drafter, setting = subject.drafter(target), SETTINGS[name]
        alone = []
        for rows in (ROWS[:2], ROWS[2:]):
            driver = _opened(subject, target, drafter, rows, setting)
            alone.append(list(_tokens(driver)))
            driver.close()
        first = _opened(subject, target, drafter, ROWS[:2], setting)
        second = _opened(subject, target, drafter, ROWS[2:], setting)
        pairs = list(zip(_tokens(first), _tokens(second), strict=True))
        for driver, which in ((first, 0), (second, 1)):
            drafted = [pair[which] for pair in pairs]
            if drafted != alone[which]:
                got = f"with another session open, the drafts {drafted}"
                raise driver.failure(got, f"its drafts without one: {alone[which]}", _STATE_HINT)
            driver.close()


@check("drafter-unchanged", kind="drafter", skip_if=remembers)
def drafter_unchanged(subject: DrafterSubject) -> None:
    """Earlier sessions do not change its drafts.

    After several sessions, some closed in mid-step, it drafts the same as when it was new.
    """
    for target in subject.targets:
        used, batch = subject.fresh(target), subject.rows(len(ROWS))
        for budget in ([4] * batch, [0] * batch, [row % 3 for row in range(batch)]):
            driver = _opened(subject, target, used)
            for accepted in range(3):
                driver.draft(budget)
                driver.accept([accepted] * batch, [2] * batch)
            driver.draft(budget)
            driver.close()
        now, first = _opened(subject, target, used), _opened(subject, target, subject.fresh(target))
        got, expected = now.draft([4] * batch), first.draft([4] * batch)
        require_same_drafts(now, got, expected, "the draft of a new drafter", _STATE_HINT)
        now.close()
        first.close()


@check("inputs-unchanged", kind="drafter")
def inputs_unchanged(subject: DrafterSubject) -> None:
    """It does not modify its inputs.

    It changes neither the tokens nor the sources, which raises, nor the hidden states that it receives.
    """
    for driver in drivers(subject):
        batch = len(driver.rows)
        for step in range(4):
            driver.draft([4] * batch)
            if driver.hidden is not None and not torch.equal(*driver.hidden):
                hint = "They belong to the core and are read-only. Copy them first: `hidden.clone()`."
                raise driver.failure("after propose(): changed hidden states", "unchanged hidden states", hint)
            driver.accept([step % 3] * batch, [2] * batch)


@check("config-unchanged", kind="drafter")
def config_unchanged(subject: DrafterSubject) -> None:
    """It modifies neither its config nor its target info."""
    for driver in drivers(subject):
        list(_tokens(driver))
        before, after = subject.first_attributes(driver.target), attributes_of(driver.drafter)
        for name, value in before.items():
            if after[name] != value:
                raise driver.failure(f"drafter.{name} = {after[name]!r}", f"as when it was built: {value!r}")


@check("target-unchanged", kind="drafter")
def target_unchanged(subject: DrafterSubject) -> None:
    """It modifies neither the target nor its tokenizer.

    Building and using it changes neither the target's weights, config and mode, nor its tokenizer.
    """
    for target in subject.targets:
        driver = SessionDriver(target, subject.fresh(target), [target.begin()] * 2, seed=subject.seed)
        list(_tokens(driver))
        driver.close()
        names = target.changed()
        if names:
            raise driver.failure(f"changed in the target: {', '.join(names[:5])}", "an unchanged target")


@check("global-state-unchanged", kind="drafter")
def global_state_unchanged(subject: DrafterSubject) -> None:
    """It leaves random generators, torch's settings and the environment alone.

    Building and using it leaves settings of torch and of the process, random generators and threads alone.
    """
    steps = subject.times(20, 4, "steps")
    for name, target in situations(subject):
        before, threads = global_state(), set(threading.enumerate())
        drafter = subject.fresh(target)
        _require_globals(before, f"built the drafter for {target}")
        rows = [target.begin()] * 2
        sampling, tree = SETTINGS[name].sampling, SETTINGS[name].tree
        driver = SessionDriver(target, drafter, rows, sampling=sampling, tree=tree, seed=subject.seed)
        list(_tokens(driver, steps))
        driver.close()
        _require_globals(before, driver.log)
        _require_ended(threads, driver.log)


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


def _require_globals(before: Mapping[str, Any], did: str) -> None:
    names = changed_globals(before)
    if names:
        hint = "Restore settings. Sample with `request.sample`, or with your own random generator."
        raise CheckFailure(did, f"changed: {', '.join(names)}", "no change", hint)


@check("close-any-time", kind="drafter")
def close_any_time(subject: DrafterSubject) -> None:
    """A session can be closed at any time.

    A session can be closed before its first request, and in mid-step.
    """
    for driver in drivers(subject):
        unused = driver.reopen()
        unused.close()
        interrupted = driver.reopen()
        interrupted.draft([3] * len(driver.rows))
        interrupted.close()


@check("sessions-freed", kind="drafter", slow=True)
def sessions_freed(subject: DrafterSubject) -> None:
    """It does not keep closed sessions alive.

    The drafter keeps neither closed sessions nor their tensors alive.
    """
    for target in subject.targets:
        drafter = subject.drafter(target)
        with frozen_heap():
            _require_freed(subject, target, drafter)


def _require_freed(subject: DrafterSubject, target: TinyTarget, drafter: Drafter) -> None:
    sizes = []
    for _ in range(2):
        for _ in range(2):
            driver = SessionDriver(target, drafter, [target.begin()] * subject.rows(4), seed=subject.seed)
            list(_tokens(driver))
            driver.close()
            session, log = weak_reference(driver.session), driver.log
            del driver
            if is_leaked(session):
                raise CheckFailure(
                    f"{log}\nreleased it",
                    "the session is still alive: something refers to it",
                    "no reference to it, so that its memory is freed",
                    _MEMORY_HINT,
                )
        sizes.append(tensor_bytes())
    if sizes[1] > sizes[0]:
        raise CheckFailure(
            f"{log}\ndid the same four times in all",
            f"{sizes[1] - sizes[0]} more bytes of tensors alive after the fourth session than after the second",
            "no more: closed sessions leave nothing behind",
            _MEMORY_HINT,
        )


@check("early-stop", kind="drafter")
def early_stop(subject: DrafterSubject) -> None:
    """It proposes nothing after a controller stops its draft.

    When a gamma controller stops a draft, no further token is proposed.
    """
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        for _ in range(3):
            asked: list[int] = []

            def stop(confidence: Sequence[float], asked: list[int] = asked) -> list[bool]:
                asked.append(len(confidence))
                return [False] * len(confidence)

            driver.propose([4] * batch, keep_drafting=stop)
            longest = max(len(draft.tokens) for draft in driver.drafts)
            if asked and longest > 1 and len(asked) >= longest:
                raise driver.failure(
                    f"drafts of up to {longest} tokens, although a controller stopped all rows after the first",
                    "drafts of one token",
                    "Sample while `request.wants_more()`, and return `request.proposal()`.",
                )
            driver.accept([1] * batch, [2] * batch)


@check("hidden-states-declared", kind="drafter")
def hidden_states_declared(subject: DrafterSubject) -> None:
    """It declares `needs_hidden_states` where it names `hidden_layers`.

    Its settings declare `needs_hidden_states` exactly where it names `hidden_layers`.
    """
    for target in subject.targets:
        drafter = subject.drafter(target)
        declared, own = subject.needs.needs_hidden_states, bool(drafter.hidden_layers)
        if declared != own and not list(nested_settings(drafter.config)):
            raise CheckFailure(
                f"compared hidden_layers of {type(drafter).__name__} with needs_hidden_states of its settings",
                f"hidden_layers = {tuple(drafter.hidden_layers)}, needs_hidden_states = {declared}",
                "needs_hidden_states = True if it names layers, so that targets without them are an error early",
            )
