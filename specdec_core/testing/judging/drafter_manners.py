"""Checks of what a drafter leaves alone: other rows, other sessions, what it was handed, what others share."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from specdec_core.border import Drafter
from specdec_core.registry.nesting import nested_settings
from specdec_core.settings import SamplingSettings
from specdec_core.testing.checking import CheckFailure, check
from specdec_core.testing.instruments.drafts import Draft
from specdec_core.testing.instruments.freed import Reference, is_kept, reference
from specdec_core.testing.instruments.hand import Hand
from specdec_core.testing.instruments.process import changes, shared_state
from specdec_core.testing.instruments.world import World
from specdec_core.testing.judging.drafter_commits import require_alike
from specdec_core.testing.judging.drafter_proposals import ROWS, SETTINGS, hands, one_row
from specdec_core.testing.subject import DrafterSubject, handed_to


def _drafts(hand: Hand, steps: int = 4) -> Iterator[list[Draft]]:
    """Take some steps; yield each row's draft in each."""
    batch = len(hand.rows)
    for step in range(steps):
        yield hand.draft([4] * batch)
        hand.keep([step % 3] * batch, [2 + step % 3] * batch)


def _run(hand: Hand, steps: int = 4) -> Iterator[list[tuple[int, ...]]]:
    """Take some steps; yield what each row drafted in each."""
    for drafts in _drafts(hand, steps):
        yield [draft.tokens for draft in drafts]


def _all(hand: Hand) -> list[list[tuple[int, ...]]]:
    """Return what each row drafted in each of some steps."""
    return list(_run(hand))


def _opened(
    subject: DrafterSubject,
    world: World,
    drafter: Drafter,
    rows: Sequence[Sequence[int]] = ROWS,
    sampling: SamplingSettings | None = None,
) -> Hand:
    """Open a session over as many of the rows as the drafter takes."""
    some = [list(row) for row in rows[: subject.batch(len(rows))]]
    begins = [world.begin(row) for row in some]
    return Hand(world, drafter, begins, sources=some, sampling=sampling, seed=subject.seed)


@check("rows-apart", kind="drafter", unless=one_row)
def rows_apart(subject: DrafterSubject) -> None:
    """A row drafts the same, whatever rows stand beside it."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            together = list(_drafts(hand))
            for row, tokens in enumerate(hand.first_rows):
                alone = Hand(
                    hand.world,
                    subject.drafter(hand.world),
                    [tokens],
                    sources=[hand.sources[row]],
                    sampling=sampling,
                    seed=subject.seed,
                    numbers=[row],
                )
                for beside, (own,) in zip(together, _drafts(alone), strict=True):
                    _require_same(hand, row, beside[row], own, "what the row drafts alone")
                alone.close()


@check("budgets-apart", kind="drafter", unless=one_row)
def budgets_apart(subject: DrafterSubject) -> None:
    """What a row drafts does not depend on the budgets of the rows beside it."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            even = hand.draft([3] * batch, seed=subject.seed)
            hand.keep([0] * batch, [2] * batch)
            even = hand.draft([3] * batch, seed=subject.seed)
            for row in range(batch):
                other = hand.again()
                budget = [3 if one == row else (0, 1, 4)[(one + row) % 3] for one in range(batch)]
                uneven = other.draft(budget, seed=subject.seed)
                other.close()
                _require_same(other, row, uneven[row], even[row], "what it drafts beside rows of the same budget")


def _require_same(hand: Hand, row: int, got: Draft, wanted: Draft, what: str) -> None:
    """Fail unless a row drafted these tokens, from this q."""
    unasked = [Draft((), ())] * row
    require_alike(hand, [*unasked, got], [*unasked, wanted], what)
    if got.tokens != wanted.tokens:
        raise hand.failure(f"the draft {list(got.tokens)} in row {row}", f"{what}: {list(wanted.tokens)}")


@check("two-sessions", kind="drafter")
def two_sessions(subject: DrafterSubject) -> None:
    """Two sessions at once draft what each drafts by itself."""
    for sampling in SETTINGS.values():
        for world in subject.worlds:
            drafter = subject.drafter(world)
            alone = []
            for rows in (ROWS[:2], ROWS[2:]):
                hand = _opened(subject, world, drafter, rows, sampling)
                alone.append(_all(hand))
                hand.close()
            first = _opened(subject, world, drafter, ROWS[:2], sampling)
            second = _opened(subject, world, drafter, ROWS[2:], sampling)
            pairs = list(zip(_run(first), _run(second), strict=True))
            for hand, which in ((first, 0), (second, 1)):
                drafted = [pair[which] for pair in pairs]
                if drafted != alone[which]:
                    hint = f"What changes while a batch is decoded belongs to the session, not to {drafter!r}."
                    got = f"with another session open beside it, the drafts {drafted}"
                    raise hand.failure(got, f"what it drafts by itself: {alone[which]}", hint)
                hand.close()


@check("drafter-unchanged", kind="drafter")
def drafter_unchanged(subject: DrafterSubject) -> None:
    """After sessions of all kinds, some broken off, it drafts what it drafted when it had just been made."""
    for world in subject.worlds:
        used, batch = subject.fresh(world), subject.batch(len(ROWS))
        for budget in ([4] * batch, [0] * batch, [row % 3 for row in range(batch)]):
            hand = _opened(subject, world, used)
            for kept in range(3):
                hand.draft(budget)
                hand.keep([kept] * batch, [2] * batch)
            hand.draft(budget)
            hand.close()
        now, first = _opened(subject, world, used), _opened(subject, world, subject.fresh(world))
        got, wanted = now.draft([4] * batch), first.draft([4] * batch)
        hint = "What changes while a batch is decoded belongs to the session, not to the drafter."
        require_alike(now, got, wanted, "what the same drafter drafts when it has just been made", hint)
        now.close()
        first.close()


@check("tokens-untouched", kind="drafter")
def tokens_untouched(subject: DrafterSubject) -> None:
    """The tokens, sources and hidden states that it is handed are not changed."""
    for hand in hands(subject):
        batch = len(hand.rows)
        sources = copy.deepcopy(hand.sources)
        for step in range(4):
            before = copy.deepcopy(hand.rows)
            hand.draft([4] * batch)
            _unchanged(hand, "after propose()", hand.rows, before)
            if hand.hidden is not None and not torch.equal(*hand.hidden):
                hint = "They are the core's own, and read only. Copy what is to be changed: `hidden.clone()`."
                raise hand.failure("after propose(): other hidden states in the request", "those that came", hint)
            hand.keep([step % 3] * batch, [2] * batch)
            wanted = [[*row, *new] for row, new in zip(before, hand.committed, strict=True)]
            _unchanged(hand, "after commit()", hand.rows, wanted)
        _unchanged(hand, "after some steps", hand.sources, sources)


def _unchanged(hand: Hand, when: str, got: object, wanted: object) -> None:
    if got != wanted:
        hint = "They are the core's own lists, and read only. Copy what is to be changed: `list(row)`."
        raise hand.failure(f"{when}: {got}", f"as the core has it: {wanted}", hint)


@check("config-untouched", kind="drafter")
def config_untouched(subject: DrafterSubject) -> None:
    """Its settings and what it was told of the target are as they were when it was made, after it was used."""
    for hand in hands(subject):
        _all(hand)
        before, after = subject.handed(hand.world), handed_to(hand.drafter)
        for name, value in before.items():
            if after[name] != value:
                raise hand.failure(f"drafter.{name} = {after[name]!r}", f"as it was: {value!r}")


@check("target-untouched", kind="drafter")
def target_untouched(subject: DrafterSubject) -> None:
    """The target's weights, config, mode and tokenizer are as they were, after the drafter was made and used."""
    for world in subject.worlds:
        hand = Hand(world, subject.fresh(world), [world.begin()] * subject.batch(2), seed=subject.seed)
        _all(hand)
        hand.close()
        names = world.changed()
        if names:
            raise hand.failure(f"changed of the target: {', '.join(names[:5])}", "the target as it was")


@check("global-state-untouched", kind="drafter")
def global_state_untouched(subject: DrafterSubject) -> None:
    """Random generators and settings that the whole process shares are as before, after it was made and used."""
    for sampling in SETTINGS.values():
        for world in subject.worlds:
            before = shared_state()
            drafter = subject.fresh(world)
            _require_as_before(before, f"made the drafter for {world}")
            hand = Hand(world, drafter, [world.begin()] * subject.batch(2), sampling=sampling, seed=subject.seed)
            for _ in _run(hand, steps=20):
                pass
            hand.close()
            _require_as_before(before, hand.failure("", "").did)


def _require_as_before(before: Mapping[str, Any], did: str) -> None:
    names = changes(before)
    if names:
        hint = "Draw with `request.sample`; for random numbers of another kind keep a generator of your own."
        raise CheckFailure(did, f"changed: {', '.join(names)}", "all as before", hint)


@check("closing", kind="drafter")
def closing(subject: DrafterSubject) -> None:
    """A session can be closed before anything was asked of it, and in the middle of a step."""
    for hand in hands(subject):
        unused = hand.again()
        unused.close()
        broken_off = hand.again()
        broken_off.draft([3] * len(hand.rows))
        broken_off.close()


@check("closing-frees", kind="drafter")
def closing_frees(subject: DrafterSubject) -> None:
    """What a session held is gone once it was closed and let go: the drafter does not keep it."""
    for world in subject.worlds:
        _require_freed(subject, world)


def _require_freed(subject: DrafterSubject, world: World) -> None:
    drafter = subject.drafter(world)
    sizes = []
    for _ in range(2):
        for _ in range(2):
            hand = Hand(world, drafter, [world.begin()] * subject.batch(4), seed=subject.seed)
            _all(hand)
            hand.close()
            session, story = reference(hand.session), hand.failure("", "").did
            del hand
            _require_gone(session, story)
        gc.collect()
        sizes.append(_tensor_bytes())
    if sizes[1] > sizes[0]:
        raise CheckFailure(
            f"{story}\ndid the same four times in all",
            f"{sizes[1] - sizes[0]} more bytes of tensors alive after the fourth session than after the second",
            "no more: sessions that are closed leave nothing behind",
            _KEEPING,
        )


_KEEPING = "Keep what belongs to a batch in its session, and drop in close() what others hold of it."


def _require_gone(session: Reference | None, story: str) -> None:
    if is_kept(session):
        raise CheckFailure(
            f"{story}\nlet go of it",
            "the session is still alive: something refers to it",
            "nothing does, so that what it holds is freed",
            _KEEPING,
        )


def _tensor_bytes() -> int:
    """Return the size of all tensors alive."""
    return sum(
        thing.numel() * thing.element_size() for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)
    )


@check("stops-when-told", kind="drafter")
def stops_when_told(subject: DrafterSubject) -> None:
    """Where a gamma controller stops a draft that is being drawn, no further token is proposed."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            for _ in range(3):
                asked: list[int] = []

                def stop(confidence: Sequence[float], asked: list[int] = asked) -> list[bool]:
                    asked.append(len(confidence))
                    return [False] * len(confidence)

                hand.propose([4] * batch, watcher=stop)
                longest = max(len(draft.tokens) for draft in hand.drafts)
                if asked and longest > 1 and len(asked) >= longest:
                    raise hand.failure(
                        f"drafts of up to {longest} tokens, though a controller stopped all rows at the first",
                        "drafts of one token",
                        "Draw while `request.wants_more()`, and propose `request.proposal()`.",
                    )
                hand.keep([1] * batch, [2] * batch)


@check("hidden-states-declared", kind="drafter")
def hidden_states_declared(subject: DrafterSubject) -> None:
    """The drafter and what it announced say the same of whether it needs the target's hidden states."""
    for world in subject.worlds:
        drafter = subject.drafter(world)
        declared, own = subject.capabilities.needs_hidden_states, drafter.needs_hidden_states
        if declared != own and not list(nested_settings(drafter.config)):
            raise CheckFailure(
                f"compared {type(drafter).__name__}.needs_hidden_states with the capabilities",
                f"{own} in the class, {declared} in the capabilities",
                "the same: the one has requests bring them, the other refuses targets that have none",
            )
