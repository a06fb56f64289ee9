"""Checks of what a drafter makes of a commit: after any, it drafts as if it had seen nothing but the tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from specdec_core.border import Outcome
from specdec_core.testing.checking import check
from specdec_core.testing.instruments.drafts import Draft
from specdec_core.testing.instruments.hand import Hand
from specdec_core.testing.instruments.world import EOS, VOCAB
from specdec_core.testing.judging.drafter_proposals import SETTINGS, hands, one_row
from specdec_core.testing.subject import DrafterSubject

NEAR = 1e-4
"""How far the q of two forwards over the same tokens may be apart: one came through a cache."""

_HINT = (
    "`commit` is the only truth about what was kept: `outcome.committed` has the tokens of each row, also of "
    "steps in which this drafter was not asked (`used=False`)."
)


def require_as_fresh(hand: Hand, seed: int) -> None:
    """Fail unless a session drafts next what one opened just now on the same tokens would.

    q is compared as far as the same tokens were drafted: a drafter may use up random numbers differently after
    other steps, as a hierarchy does, which changes draws and no distribution.
    """
    budget = [0 if over else hand.info.max_gamma for over in hand.finished]
    used = hand.draft(budget, seed=seed)
    other = hand.again()
    fresh = other.draft(budget, seed=seed)
    other.close()
    require_alike(hand, used, fresh, "what a fresh session drafts on the same tokens", _HINT)


def require_alike(
    hand: Hand, got: Sequence[Draft], wanted: Sequence[Draft], what: str, hint: str | None = None
) -> None:
    """Fail unless two drafts are alike in every row, as far as `require_as_fresh` compares them.

    Args:
        hand: Whose story is told.
        got: What it drafted.
        wanted: What it should have drafted.
        what: What that is, for messages.
        hint: What usually mends it.
    """
    for row, (one, other) in enumerate(zip(got, wanted, strict=True)):
        fault = _difference(one, other)
        if fault is not None:
            said = f"in row {row} the draft {list(one.tokens)}; {fault}"
            raise hand.failure(said, f"{what}: {list(other.tokens)}", hint)


def _difference(used: Draft, fresh: Draft) -> str | None:
    """Return how two drafts differ beyond what their draws explain; None where they do not."""
    for place, (one, other) in enumerate(zip(used.q, fresh.q, strict=False)):
        if not torch.allclose(one, other, atol=NEAR, rtol=1e-3):
            return f"q at position {place} is {_short(one)}, and should be {_short(other)}"
        if used.tokens[place] != fresh.tokens[place]:
            return None
    if len(used.tokens) != len(fresh.tokens):
        return f"it has {len(used.tokens)} tokens, and should have {len(fresh.tokens)}"
    return None


def _short(q: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in q.tolist()) + "]"


def _after(subject: DrafterSubject, step: Callable[[Hand, int], None], times: int = 4) -> None:
    """Take a step again and again, and compare with a fresh session after each of them."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            require_as_fresh(hand, subject.seed)
            for number in range(times):
                step(hand, number)
                require_as_fresh(hand, subject.seed + 1 + number)


def _last(hand: Hand, number: int) -> list[int]:
    """Return tokens that the target may have drawn; none ends a row."""
    tokens = [token for token in range(VOCAB) if token != EOS]
    return [tokens[(number * 2 + row) % len(tokens)] for row in range(len(hand.rows))]


@check("all-accepted", kind="drafter")
def all_accepted(subject: DrafterSubject) -> None:
    """After a draft that was accepted as a whole, it drafts as a fresh session would."""
    _after(subject, lambda hand, number: hand.keep([4] * len(hand.rows), _last(hand, number)))


@check("none-accepted", kind="drafter")
def none_accepted(subject: DrafterSubject) -> None:
    """After a draft of which nothing was accepted, it drafts as a fresh session would."""
    _after(subject, lambda hand, number: hand.keep([0] * len(hand.rows), _last(hand, number)))


@check("each-prefix-accepted", kind="drafter")
def each_prefix_accepted(subject: DrafterSubject) -> None:
    """After each prefix of a draft was accepted, unlike in each row, it drafts as a fresh session would."""

    def some(hand: Hand, number: int) -> None:
        hand.keep([(number + row) % 5 for row in range(len(hand.rows))], _last(hand, number))

    _after(subject, some, times=5)


@check("not-asked", kind="drafter")
def not_asked(subject: DrafterSubject) -> None:
    """After steps in which it was not asked (`used=False`), it drafts as a fresh session would."""

    def passed_by(hand: Hand, number: int) -> None:
        hand.keep([1] * len(hand.rows), _last(hand, number))
        for more in range(1 + number % 2):
            hand.pass_by([[token] for token in _last(hand, number + more)])

    _after(subject, passed_by)


@check("not-asked-at-first", kind="drafter")
def not_asked_at_first(subject: DrafterSubject) -> None:
    """A session whose first steps went by without it drafts as a fresh session would."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            for number in range(2):
                hand.pass_by([[token] for token in _last(hand, number)])
            require_as_fresh(hand, subject.seed)


@check("draft-of-another", kind="drafter")
def draft_of_another(subject: DrafterSubject) -> None:
    """After a step in which another drafter's tokens were committed, it drafts as a fresh session would."""

    def other(hand: Hand, number: int) -> None:
        hand.pass_by([[4, 0, token] for token in _last(hand, number)])

    _after(subject, other)


@check("row-of-another", kind="drafter", unless=one_row)
def row_of_another(subject: DrafterSubject) -> None:
    """After a step that it shared with another drafter row by row, it drafts as a fresh session would."""

    def shared(hand: Hand, number: int) -> None:
        mine = [(row + number) % 2 == 0 for row in range(len(hand.rows))]
        own = hand.kept_of([2 if own else 0 for own in mine])
        drafted = tuple(len(draft.tokens) if own else 0 for draft, own in zip(hand.drafts, mine, strict=True))
        new = [
            (*tokens, token) if is_own else (3, 5, token)
            for tokens, token, is_own in zip(own, _last(hand, number), mine, strict=True)
        ]
        accepted = tuple(map(len, own))
        hand.commit(Outcome(drafted, accepted, tuple(new), (False,) * len(mine), used=any(drafted)))

    _after(subject, shared)


@check("zero-budget-between", kind="drafter")
def zero_budget_between(subject: DrafterSubject) -> None:
    """After a row's budget was 0 for some steps while others drafted, it drafts as a fresh session would."""

    def waiting(hand: Hand, number: int) -> None:
        batch = len(hand.rows)
        hand.keep([2] * batch, _last(hand, number))
        hand.draft([0 if row % 2 == number % 2 else 3 for row in range(batch)])
        hand.keep([1] * batch, _last(hand, number + 1))

    _after(subject, waiting)


@check("row-finished", kind="drafter", unless=one_row)
def row_finished(subject: DrafterSubject) -> None:
    """After some rows have ended, the others are drafted as in a fresh session, and those not at all."""

    def ending(hand: Hand, number: int) -> None:
        batch = len(hand.rows)
        hand.keep([1] * batch, _last(hand, number), finished=[row == number for row in range(batch)])

    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            require_as_fresh(hand, subject.seed)
            for number in range(len(hand.rows) - 1):
                ending(hand, number)
                require_as_fresh(hand, subject.seed + 1 + number)


@check("end-inside-a-draft", kind="drafter")
def end_inside_a_draft(subject: DrafterSubject) -> None:
    """After a row ended inside its draft, where fewer tokens are committed than were drafted, the others go on."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            for row in range(batch):
                drafts = hand.draft([0 if over else 4 for over in hand.finished])
                new, accepted = [], []
                for index, (draft, over) in enumerate(zip(drafts, hand.finished, strict=True)):
                    # The row's first draft token is taken to be what ends it; what lies behind is cut.
                    tokens = draft.tokens[:1] if index == row else draft.tokens
                    tail = () if over or (index == row and tokens) else (3,)
                    new.append(() if over else (*tokens, *tail))
                    accepted.append(0 if over else len(tokens))
                hand.finished[row] = True
                drafted = tuple(len(draft.tokens) for draft in drafts)
                outcome = Outcome(drafted, tuple(accepted), tuple(new), tuple(hand.finished), used=any(drafted))
                hand.commit(outcome)
                if not all(hand.finished):
                    require_as_fresh(hand, subject.seed + row)
                    hand.keep([0] * batch, [2] * batch)


@check("long-drafts", kind="drafter")
def long_drafts(subject: DrafterSubject) -> None:
    """It drafts in sessions of at most 1 and of at most 12 tokens a step, and then as a fresh session would."""
    for most in (1, 12):
        for hand in hands(subject, max_gamma=most):
            batch = len(hand.rows)
            for _ in range(3):
                hand.draft([most] * batch)
                hand.keep([most] * batch, [3] * batch)
            require_as_fresh(hand, subject.seed)


@check("many-steps", kind="drafter")
def many_steps(subject: DrafterSubject) -> None:
    """After a dozen steps of all kinds in any order, it drafts as a fresh session would."""
    dice = random.Random(subject.seed)
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            for number in range(12):
                if dice.random() < 0.25:
                    hand.pass_by([[dice.randrange(2, VOCAB)] for _ in range(batch)])
                else:
                    hand.draft([dice.randrange(5) for _ in range(batch)])
                    hand.keep([dice.randrange(5) for _ in range(batch)], _last(hand, number))
            require_as_fresh(hand, subject.seed)


def without_rollback(subject: DrafterSubject) -> str | None:
    """Say why a check of taking commits back does not apply."""
    for hand in hands(subject):
        if not hand.session.can_roll_back:
            return "its session has a commit() and no rollback(), so that it stands in no hierarchy"
    return None


@check("rolled-back", kind="drafter", unless=without_rollback)
def rolled_back(subject: DrafterSubject) -> None:
    """After commits were taken back, as in a hierarchy, it drafts as a fresh session would."""

    def back(hand: Hand, number: int) -> None:
        batch = len(hand.rows)
        before = [len(row) for row in hand.rows]
        hand.keep([3] * batch, _last(hand, number))
        for more in range(1 + number):
            hand.draft([2] * batch)
            over = [(number + row) % 2 == 0 for row in range(batch)] if more == number else None
            hand.keep([number % 3] * batch, _last(hand, number + 1), finished=over)
        far = [n + (number + row) % 3 for row, n in enumerate(before)]
        hand.rollback([min(n, len(row)) for n, row in zip(far, hand.rows, strict=True)])
        hand.finished = [False] * batch  # the level above goes on with rows that had ended here
        hand.pass_by([[token] for token in _last(hand, number + 2)])

    _after(subject, back)
