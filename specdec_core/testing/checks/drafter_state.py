"""Checks of a session's state: after any commit, it drafts like a fresh session on the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from specdec_core.testing.checks.drafter_proposals import drivers, drivers_for_all_settings
from specdec_core.testing.harness.drafts import Draft
from specdec_core.testing.harness.session_driver import SessionDriver
from specdec_core.testing.harness.tiny_target import EOS, VOCAB
from specdec_core.testing.registration import check
from specdec_core.testing.subject import DrafterSubject

ATOL = 1e-4
"""Difference between the q of two forward passes over the same tokens, one with a cache and one without."""

_HINT = (
    "Only `commit` says what was accepted. `outcome.committed` has the new tokens of each row, also after steps "
    "in which nothing of this drafter was verified (`drafted` is 0)."
)


def require_as_fresh(driver: SessionDriver, seed: int) -> None:
    """Fail unless a session drafts the same as a fresh one on the same tokens.

    q is compared up to the first draft token that differs. A drafter may consume random numbers differently after
    different steps, as a hierarchy does: that changes the sampled tokens, but no distribution.
    """
    budget = [0 if over else driver.info.max_gamma for over in driver.finished]
    used = driver.draft(budget, seed=seed)
    other = driver.reopen()
    fresh = other.draft(budget, seed=seed)
    other.close()
    require_same_drafts(driver, used, fresh, "the draft of a fresh session on the same tokens", _HINT)


def require_same_drafts(
    driver: SessionDriver, got: Sequence[Draft], expected: Sequence[Draft], what: str, hint: str | None = None
) -> None:
    """Fail unless the drafts of every row are equal, as far as `require_as_fresh` compares them.

    Args:
        driver: The session.
        got: Its drafts.
        expected: The drafts that it should have made.
        what: What `expected` is, for messages.
        hint: What usually fixes it.
    """
    for row, (one, other) in enumerate(zip(got, expected, strict=True)):
        fault = _difference(one, other)
        if fault is not None:
            raise driver.failure(
                f"row {row}: the draft {list(one.tokens)}; {fault}", f"{what}: {list(other.tokens)}", hint
            )


def _difference(used: Draft, fresh: Draft) -> str | None:
    """Return how two drafts differ other than by chance; None where they do not."""
    for position, (one, other) in enumerate(zip(used.q, fresh.q, strict=False)):
        if not torch.allclose(one, other, atol=ATOL, rtol=1e-3):
            return f"q at position {position} is {_short(one)}, not {_short(other)}"
        if used.tokens[position] != fresh.tokens[position]:
            return None
        if (used.parents and used.parents[position]) != (fresh.parents and fresh.parents[position]):
            return f"its parents are {used.parents}, not {fresh.parents}"
    if len(used.tokens) != len(fresh.tokens):
        return f"it has {len(used.tokens)} tokens, not {len(fresh.tokens)}"
    return None


def _short(q: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in q.tolist()) + "]"


def _after_each(subject: DrafterSubject, step: Callable[[SessionDriver, int], None], times: int = 4) -> None:
    """Repeat a step, and compare with a fresh session after each."""
    times = subject.times(times, 2, "steps")
    for driver in drivers_for_all_settings(subject):
        require_as_fresh(driver, subject.seed)
        for number in range(times):
            step(driver, number)
            require_as_fresh(driver, subject.seed + 1 + number)


def _next_tokens(driver: SessionDriver, number: int) -> list[int]:
    """Return a next token for each row; none ends the sequence."""
    tokens = [token for token in range(VOCAB) if token != EOS]
    return [tokens[(number * 2 + row) % len(tokens)] for row in range(len(driver.rows))]


@check("all-accepted", kind="drafter")
def all_accepted(subject: DrafterSubject) -> None:
    """No stale state after a fully accepted draft."""
    _after_each(
        subject, lambda driver, number: driver.accept([4] * len(driver.rows), _next_tokens(driver, number))
    )


@check("none-accepted", kind="drafter")
def none_accepted(subject: DrafterSubject) -> None:
    """No stale state after a fully rejected draft."""
    _after_each(
        subject, lambda driver, number: driver.accept([0] * len(driver.rows), _next_tokens(driver, number))
    )


@check("prefix-accepted", kind="drafter")
def prefix_accepted(subject: DrafterSubject) -> None:
    """No stale state after a partly accepted draft.

    After prefixes of different lengths are accepted in each row, it drafts like a fresh session.
    """

    def some(driver: SessionDriver, number: int) -> None:
        driver.accept([(number + row) % 5 for row in range(len(driver.rows))], _next_tokens(driver, number))

    _after_each(subject, some, times=5)


@check("step-without-draft", kind="drafter")
def step_without_draft(subject: DrafterSubject) -> None:
    """No stale state after steps without its draft."""

    def unused(driver: SessionDriver, number: int) -> None:
        driver.accept([1] * len(driver.rows), _next_tokens(driver, number))
        for more in range(1 + number % 2):
            driver.commit_unused([[token] for token in _next_tokens(driver, number + more)])

    _after_each(subject, unused)


@check("first-step-without-draft", kind="drafter")
def first_step_without_draft(subject: DrafterSubject) -> None:
    """No stale state if it joins later.

    If it was not used in the first steps, it drafts like a fresh session afterwards.
    """
    for driver in drivers_for_all_settings(subject):
        for number in range(2):
            driver.commit_unused([[token] for token in _next_tokens(driver, number)])
        require_as_fresh(driver, subject.seed)


@check("other-drafter-used", kind="drafter")
def other_drafter_used(subject: DrafterSubject) -> None:
    """No stale state after another drafter's tokens."""

    def other(driver: SessionDriver, number: int) -> None:
        driver.commit_unused([[4, 0, token] for token in _next_tokens(driver, number)])

    _after_each(subject, other)


@check("other-drafter-in-some-rows", kind="drafter")
def other_drafter_in_some_rows(subject: DrafterSubject) -> None:
    """No stale state after another drafter's tokens in some rows."""

    def shared(driver: SessionDriver, number: int) -> None:
        mine = [(row + number) % 2 == 0 for row in range(len(driver.rows))]
        pairs = zip(_next_tokens(driver, number), mine, strict=True)
        tails = [(token,) if is_own else (3, 5, token) for token, is_own in pairs]
        driver.commit_drafts([2] * len(mine), tails, mine)

    _after_each(subject, shared)


@check("zero-budget-rows", kind="drafter")
def zero_budget_rows(subject: DrafterSubject) -> None:
    """No stale state after budgets of 0 in some rows."""

    def waiting(driver: SessionDriver, number: int) -> None:
        batch = len(driver.rows)
        driver.accept([2] * batch, _next_tokens(driver, number))
        driver.draft([0 if row % 2 == number % 2 else 3 for row in range(batch)])
        driver.accept([1] * batch, _next_tokens(driver, number + 1))

    _after_each(subject, waiting)


@check("rows-finished", kind="drafter")
def rows_finished(subject: DrafterSubject) -> None:
    """No stale state after some rows have ended.

    After some rows have ended, the others draft like a fresh session.
    """

    def ending(driver: SessionDriver, number: int) -> None:
        batch = len(driver.rows)
        driver.accept([1] * batch, _next_tokens(driver, number), finished=[row == number for row in range(batch)])

    for driver in drivers_for_all_settings(subject):
        require_as_fresh(driver, subject.seed)
        for number in range(len(driver.rows) - 1):
            ending(driver, number)
            require_as_fresh(driver, subject.seed + 1 + number)


@check("eos-inside-draft", kind="drafter")
def eos_inside_draft(subject: DrafterSubject) -> None:
    """No stale state after a row ends inside its draft.

    After a row has ended inside its draft, with fewer tokens committed than accepted, the others go on.
    """
    for driver in drivers_for_all_settings(subject):
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
                require_as_fresh(driver, subject.seed + row)
                driver.accept([0] * batch, [2] * batch)


@check("long-drafts", kind="drafter")
def long_drafts(subject: DrafterSubject) -> None:
    """No stale state with `max_gamma` 1 and 12."""
    times = subject.times(3, 1, "steps")
    for gamma in (1, 12):
        for driver in drivers(subject, max_gamma=gamma):
            batch = len(driver.rows)
            for _ in range(times):
                driver.draft([gamma] * batch)
                driver.accept([gamma] * batch, [3] * batch)
            require_as_fresh(driver, subject.seed)


@check("many-steps", kind="drafter")
def many_steps(subject: DrafterSubject) -> None:
    """No stale state after a dozen random steps."""
    rng, times = random.Random(subject.seed), subject.times(12, 6, "steps")
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        for number in range(times):
            if rng.random() < 0.25:
                driver.commit_unused([[rng.randrange(2, VOCAB)] for _ in range(batch)])
            else:
                driver.draft([rng.randrange(5) for _ in range(batch)])
                driver.accept([rng.randrange(5) for _ in range(batch)], _next_tokens(driver, number))
        require_as_fresh(driver, subject.seed)


@check("rollback", kind="drafter")
def rollback(subject: DrafterSubject) -> None:
    """No stale state after commits are rolled back."""

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
        driver.commit_unused([[token] for token in _next_tokens(driver, number + 2)])

    _after_each(subject, back)
