"""Checks of what a drafter proposes: how much, which ids, and from which q."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch

from specdec_core.decoding.checking import FAULTS, TOLERANCE, inspect_draft
from specdec_core.settings import SamplingSettings
from specdec_core.testing.checking import CheckFailure, check
from specdec_core.testing.instruments.drafts import Draft
from specdec_core.testing.instruments.hand import CAPACITY, Hand
from specdec_core.testing.instruments.statistics import SUSPICIOUS, p_of_groups
from specdec_core.testing.instruments.world import PROMPT, VOCAB
from specdec_core.testing.subject import DrafterSubject

ROWS = (PROMPT, (4,), (5, 2, 0, 3, 5, 2, 0), (3, 3, 3))
"""Rows of unlike lengths, one of a single token."""

SETTINGS = {
    "temperature 1": SamplingSettings(),
    "temperature 0.7, top-k 3": SamplingSettings(temperature=0.7, top_k=3),
    "argmax": SamplingSettings(temperature=0),
}
"""How drafts are sampled where a check tries several ways."""

DRAWS = 2400
"""How many drafts are drawn to see what they are drawn from."""

_Groups: TypeAlias = dict[tuple[object, ...], list[tuple[int, torch.Tensor]]]
"""Draws with the q of each, sorted by what they can be compared with."""


def hands(
    subject: DrafterSubject,
    rows: Sequence[Sequence[int]] = ROWS,
    sampling: SamplingSettings | None = None,
    max_gamma: int = 4,
) -> Iterator[Hand]:
    """Yield a session over some rows on each target that the drafter works for; one without a fault is closed."""
    for world in subject.worlds:
        some = [list(row) for row in rows[: subject.batch(len(rows))]]
        begins = [world.begin(row) for row in some]
        hand = Hand(
            world,
            subject.drafter(world),
            begins,
            sources=some,
            sampling=sampling,
            max_gamma=max_gamma,
            seed=subject.seed,
        )
        yield hand
        hand.close()


def steps(hand: Hand, budgets: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], list[Draft]]]:
    """Yield some steps' budgets and drafts; one token of each draft is kept, and one comes from the target."""
    batch = len(hand.rows)
    for step, numbers in enumerate(budgets):
        budget = list(numbers[:batch])
        yield budget, hand.draft(budget)
        hand.keep([1] * batch, [(2 + step) % VOCAB] * batch)


@check("zero-budget", kind="drafter")
def zero_budget(subject: DrafterSubject) -> None:
    """A budget of 0 gives an empty draft, and the session goes on."""
    for hand in hands(subject):
        for budget, drafts in steps(hand, [(0, 0, 0, 0), (2, 2, 2, 2), (0, 0, 0, 0), (1, 1, 1, 1)]):
            drafted = [len(draft.tokens) for draft in drafts]
            if not any(budget) and any(drafted):
                raise hand.failure(f"{drafted} tokens", "no token: every budget was 0")


@check("budget-respected", kind="drafter")
def budget_respected(subject: DrafterSubject) -> None:
    """No row drafts more tokens than its budget."""
    for hand in hands(subject):
        for budget, drafts in steps(hand, [(4, 4, 4, 4), (1, 1, 1, 1), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 4)]):
            for row, (most, draft) in enumerate(zip(budget, drafts, strict=True)):
                if len(draft.tokens) > most:
                    raise hand.failure(f"{len(draft.tokens)} tokens in row {row}", f"at most {most}")


@check("ragged-rows", kind="drafter", unless=lambda subject: one_row(subject))
def ragged_rows(subject: DrafterSubject) -> None:
    """Rows of unlike lengths draft with unlike budgets, 0 among them, each within its own."""
    for hand in hands(subject):
        for budget, drafts in steps(hand, [(4, 0, 2, 1), (0, 3, 0, 4), (1, 4, 0, 0), (0, 0, 3, 2)]):
            drafted = [len(draft.tokens) for draft in drafts]
            if any(length > most for length, most in zip(drafted, budget, strict=True)):
                raise hand.failure(f"{drafted} tokens", f"at most {budget}, row by row")


def one_row(subject: DrafterSubject) -> str | None:
    """Say why a check of several rows does not apply."""
    return "it declares that it drafts for one row at a time" if subject.batch(2) < 2 else None


@check("largest-batch", kind="drafter")
def largest_batch(subject: DrafterSubject) -> None:
    """It drafts for as many rows at once as it declares; for 32 where it declares no bound."""
    batch = subject.capabilities.max_batch or 32
    rows = [list(ROWS[row % len(ROWS)]) for row in range(batch)]
    for world in subject.worlds:
        begins = [world.begin(row) for row in rows]
        hand = Hand(world, subject.drafter(world), begins, sources=rows, seed=subject.seed)
        for _ in steps(hand, [(3,) * batch] * 2):
            pass
        hand.close()


@check("one-token-context", kind="drafter")
def one_token_context(subject: DrafterSubject) -> None:
    """A context of one token, the least that the core ever hands over, is enough to be asked."""
    for hand in hands(subject, [(4,)]):
        for _ in steps(hand, [(3,), (3,)]):
            pass


@check("empty-context", kind="drafter", required=False)
def empty_context(subject: DrafterSubject) -> None:
    """A context without a token, which the core never hands over, is no reason to raise."""
    for world in subject.worlds:
        hand = Hand(world, subject.drafter(world), [[]], sources=[[4]], seed=subject.seed)
        hand.draft([3])
        hand.keep([0], [2])
        hand.draft([3])
        hand.close()


@check("full-capacity", kind="drafter")
def full_capacity(subject: DrafterSubject) -> None:
    """It drafts up to the last token that a row may hold, as `SessionInfo.capacity` says."""
    for hand in hands(subject):
        batch = len(hand.rows)
        for row in hand.rows:
            row.extend((2 + 3 * place) % VOCAB for place in range(len(row), CAPACITY - 9))
        while len(hand.rows[0]) < CAPACITY:
            # The last place is for the token that the target draws.
            budget = min(4, CAPACITY - 1 - len(hand.rows[0]))
            hand.draft([budget] * batch)
            hand.keep([0] * batch, [3] * batch)


@check("ids-in-range", kind="drafter")
def ids_in_range(subject: DrafterSubject) -> None:
    """Draft tokens, and the ids of their q, are in the target's vocabulary."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            for _ in range(4):
                proposal = hand.propose([4] * batch)
                for row, length in enumerate(proposal.lengths):
                    ids = proposal.tokens[row, :length].tolist()
                    listed = getattr(proposal.q, "ids", None)
                    if listed is not None:
                        ids += listed[row, :length].flatten().tolist()
                    outside = [token for token in ids if not 0 <= token < VOCAB]
                    if outside:
                        raise hand.failure(f"id {outside[0]} in row {row}", f"ids from 0 to {VOCAB - 1}")
                hand.keep([2] * batch, [5] * batch)


@check("q-sums-to-one", kind="drafter")
def q_sums_to_one(subject: DrafterSubject) -> None:
    """At every drafted position q is a distribution: not negative, no NaN, and its sum is 1."""
    for hand, row, place, _, q in _positions(subject):
        total = float(q.sum())
        if not abs(total - 1) <= TOLERANCE or bool((q < 0).any()):
            hint = "q is what was sampled from: probabilities, never logits. `request.sample` takes care of it."
            got = f"q = {_numbers(q)} at position {place} of row {row}, which sums to {total:.4g}"
            raise hand.failure(got, f"numbers that are not negative and sum to 1 (within {TOLERANCE:g})", hint)


@check("q-gives-the-token", kind="drafter")
def q_gives_the_token(subject: DrafterSubject) -> None:
    """In q the drafted token has more than 0, as what was drawn from it must have."""
    for hand, row, place, token, q in _positions(subject):
        given = float(q[token]) if 0 <= token < VOCAB else 0.0
        if not given > 0:
            got = f"q({token}) = {given:g} for the token drafted at position {place} of row {row}: {_numbers(q)}"
            raise hand.failure(got, "more than 0")


def _positions(subject: DrafterSubject) -> Iterator[tuple[Hand, int, int, int, torch.Tensor]]:
    """Yield every position that is drafted in some steps: session, row, place, token and q `[V]`."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            for step in range(4):
                for row, draft in enumerate(hand.draft([4] * batch)):
                    for place, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
                        yield hand, row, place, token, q
                hand.keep([step] * batch, [5] * batch)


@check("q-well-formed", kind="drafter")
def q_well_formed(subject: DrafterSubject) -> None:
    """A proposal passes the test that the core applies to every draft."""
    for sampling in SETTINGS.values():
        for hand in hands(subject, sampling=sampling):
            batch = len(hand.rows)
            proposal = hand.propose([4] * batch)
            _, fault = inspect_draft(proposal, VOCAB, trusted=False)
            worst = max(fault.tolist())
            if worst:
                raise hand.failure(
                    FAULTS[worst].format(last=VOCAB - 1), f"a {type(proposal.q).__name__} as its docstring says"
                )
            if proposal.parents is not None:
                raise hand.failure(f"parents {proposal.parents!r}", "None: token trees are reserved")


@check("q-is-what-was-drawn", kind="drafter")
def q_is_what_was_drawn(subject: DrafterSubject) -> None:
    """Draft tokens are distributed as their q says, at each depth of the draft (chi-square)."""
    for world in subject.worlds:
        # What is drawn is the same on both targets: on the second, fewer draws show what goes wrong there only.
        part = 1 if world is subject.world else 3
        for name, sampling in SETTINGS.items():
            depths: list[_Groups] = [defaultdict(list) for _ in range(4)]
            batch = subject.batch(80)
            for number in range(min(DRAWS // batch, 400) // part):
                begins, drafter = [world.begin()] * batch, subject.drafter(world)
                hand = Hand(world, drafter, begins, sampling=sampling, seed=subject.seed + 1 + number)
                _collect(hand, depths, lead=12 if number % 3 == 0 else 0)
                hand.close()
            for depth, groups in enumerate(depths):
                _require_fit(groups, f"{name}, on {world}", depth)


def _collect(hand: Hand, depths: Sequence[_Groups], lead: int) -> None:
    """Draft in a second step (in a first one there are no hidden states yet), and sort what is drawn.

    Args:
        hand: The session.
        depths: Where draws are added, by their place in the draft.
        lead: How many tokens are committed before, so that contexts are longer.
    """
    batch = len(hand.rows)
    for place in range(lead):
        hand.pass_by([[(2, 3, 5, 4, 0)[place % 5]]] * batch)
    hand.propose([0] * batch)
    hand.keep([0] * batch, [3] * batch)
    for draft in hand.draft([4] * batch):
        for depth, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            # Draws after the same tokens and from the same q are one sample.
            key = draft.tokens[:depth], tuple(q.mul(1e4).round().tolist())
            depths[depth][key].append((token, q))


def _require_fit(groups: _Groups, where: str, depth: int) -> None:
    counts = []
    for draws in groups.values():
        seen, q = [0.0] * VOCAB, draws[0][1]
        for token, _ in draws:
            if 0 <= token < VOCAB:
                seen[token] += 1
        counts.append((seen, (q * sum(seen)).tolist()))
    p = p_of_groups(counts)
    if p >= SUSPICIOUS:
        return
    seen, wanted = max(counts, key=lambda pair: sum(abs(a - b) for a, b in zip(*pair, strict=True)))
    raise CheckFailure(
        f"drew {sum(map(len, groups.values()))} tokens at position {depth} of drafts ({where})",
        f"counts that q makes unlikely: p-value {p:.1e}\nof ids 0 to {VOCAB - 1}, most often of all where q was "
        f"{_numbers(torch.tensor(wanted) / sum(wanted))}: {[round(n) for n in seen]} draws",
        f"about {[round(n) for n in wanted]}; a p-value of {SUSPICIOUS:g} or more",
        "q must be what the token was drawn from, after temperature and the like, and a token that was drawn must "
        "be proposed, whatever it is. `request.sample` draws and keeps q.",
    )


def _numbers(q: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" if math.isfinite(value) else str(value) for value in q.tolist()) + "]"


@check("seeded-repeatability", kind="drafter")
def seeded_repeatability(subject: DrafterSubject) -> None:
    """The same seed gives the same drafts, session after session."""
    for sampling in SETTINGS.values():
        told: dict[str, list[list[tuple[int, ...]]]] = {}
        for _ in range(2):
            for hand in hands(subject, sampling=sampling):
                batch = len(hand.rows)
                own = []
                for step in range(4):
                    own.append([draft.tokens for draft in hand.draft([4] * batch)])
                    hand.keep([step] * batch, [2] * batch)
                first = told.setdefault(hand.world.name, own)
                if first != own:
                    hint = (
                        "All random numbers come from the core, which has one generator for each row: draw with "
                        "`request.sample` or `request.draw`."
                    )
                    raise hand.failure(f"the drafts {own}", f"those of the first time: {first}", hint)


@check("on-device", kind="drafter", required=False)
def on_device(subject: DrafterSubject) -> None:
    """Tokens and q are where the target computes, so that no step has to move them."""
    for hand in hands(subject):
        proposal = hand.propose([4] * len(hand.rows))
        device = hand.world.target.device
        tensors = [proposal.tokens, *(value for value in vars(proposal.q).values())]
        elsewhere = {str(tensor.device) for tensor in tensors if tensor.device.type != device.type}
        if elsewhere and proposal.longest:
            raise hand.failure(f"tensors on {', '.join(sorted(elsewhere))}", f"tensors on {device}")


@check("drafts-something", kind="drafter", required=False)
def drafts_something(subject: DrafterSubject) -> None:
    """It drafts a token somewhere: a drafter that never does passes much for nothing."""
    drafted = 0
    for hand in hands(subject):
        drafted += sum(len(draft.tokens) for _, drafts in steps(hand, [(4, 4, 4, 4)] * 4) for draft in drafts)
    if not drafted:
        raise hand.failure("no token in four steps on any target", "a token somewhere")
