"""Checks of a drafter's proposals: how many tokens, which ids, and whether they were sampled from q."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch

from specdec_core.decoding.validation import (
    BAD_SUM,
    BAD_TOKEN,
    FAULTS,
    FINE,
    TOLERANCE,
    validate,
    worst,
)
from specdec_core.interface import BestFirstTree, TokenTree
from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing.harness.draft_settings import IN_LINES, IN_TREES, SETTINGS, Setting
from specdec_core.testing.harness.session_driver import CAPACITY, SessionDriver
from specdec_core.testing.harness.statistics import SUSPICIOUS, UNREMARKABLE, p_of_groups
from specdec_core.testing.harness.tiny_target import PROMPT, VOCAB, TinyTarget
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.subject import DrafterSubject

ROWS = (PROMPT, (4,), (5, 2, 0, 3, 5, 2, 0), (3, 3, 3))
"""Rows of different lengths, one of a single token."""

DRAFT_DEPTH = 4
MIN_DRAFTS, MAX_DRAFTS = 600, 4800
"""How many drafts are sampled at first, and at most, to compare them with their q."""

_Groups: TypeAlias = dict[tuple[object, ...], list[tuple[int, torch.Tensor]]]
"""Draft tokens with their q, grouped by what makes them one sample."""


def drivers(
    subject: DrafterSubject,
    rows: Sequence[Sequence[int]] = ROWS,
    setting: Setting | None = None,
    max_gamma: int = 4,
    targets: Sequence[TinyTarget] | None = None,
) -> Iterator[SessionDriver]:
    """Yield a driver over some rows for each target, by default all; sessions are closed after a success."""
    setting = setting or Setting(SamplingSettings())
    for target in subject.targets if targets is None else targets:
        some = [list(row) for row in rows[: subject.rows(len(rows))]]
        driver = SessionDriver(
            target,
            subject.drafter(target),
            [target.begin(row) for row in some],
            sources=some,
            sampling=setting.sampling,
            tree=setting.tree,
            max_gamma=max_gamma,
            seed=subject.seed,
        )
        yield driver
        driver.close()


def situations(subject: DrafterSubject, *, every: bool = False) -> list[tuple[str, TinyTarget]]:
    """Return pairs of one of `SETTINGS` and a target; where time is short, few of them, trees included.

    Args:
        subject: The drafter.
        every: Whether top-k is tried in lines as well where the drafter drafts trees.
    """
    pairs = [
        (name, target)
        for name in SETTINGS
        for target in subject.targets
        if name != (IN_LINES if subject.drafts_trees(target) else IN_TREES) or (every and name == IN_LINES)
    ]
    if subject.times(len(pairs), len(subject.targets), "pairs of sampling settings and a target") == len(pairs):
        return pairs
    names = list(dict.fromkeys(name for name, _ in pairs))
    if every and IN_TREES in names:
        names.remove(IN_LINES)
    few = list(zip(names, subject.targets, strict=False))
    # Where there is one target, trees are tried as well: a session keeps other tokens of them.
    return few + ([(IN_TREES, few[0][1])] if IN_TREES in names and len(few) == 1 else [])


def drivers_for_all_settings(subject: DrafterSubject) -> Iterator[SessionDriver]:
    """Yield a driver for each of the `situations`."""
    for name, target in situations(subject):
        yield from drivers(subject, setting=SETTINGS[name], targets=[target])


def _steps(driver: SessionDriver, budgets: Sequence[Sequence[int]]) -> int:
    """Run a step with each of some budgets; return how many tokens were drafted.

    The driver requires legal proposals: tokens of the vocabulary, and no more than the budget. Each step accepts
    one draft token and commits one more.
    """
    batch, drafted = len(driver.rows), 0
    for step, budget in enumerate(budgets):
        drafted += sum(len(draft.tokens) for draft in driver.draft(list(budget[:batch])))
        driver.accept([1] * batch, [(2 + step) % VOCAB] * batch)
    return drafted


def _require_proposals(subject: DrafterSubject, budgets: Sequence[Sequence[int]]) -> None:
    for driver in drivers(subject):
        _steps(driver, budgets)


@check("zero-budget", kind="drafter")
def zero_budget(subject: DrafterSubject) -> None:
    """A budget of 0 gives an empty draft.

    A budget of 0 gives an empty draft, and the session goes on.
    """
    _require_proposals(subject, [(0, 0, 0, 0), (2, 2, 2, 2), (0, 0, 0, 0), (1, 1, 1, 1)])


@check("budget-respected", kind="drafter")
def budget_respected(subject: DrafterSubject) -> None:
    """No draft is longer than its budget."""
    _require_proposals(subject, [(4, 4, 4, 4), (1, 1, 1, 1), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 4)])


@check("ragged-rows", kind="drafter")
def ragged_rows(subject: DrafterSubject) -> None:
    """Rows of different lengths respect their own budgets.

    Rows of different lengths can have different budgets, 0 among them, and respect their own.
    """
    _require_proposals(subject, [(4, 0, 2, 1), (0, 3, 0, 4), (1, 4, 0, 0), (0, 0, 3, 2)])


def no_trees(subject: DrafterSubject) -> str | None:
    """Return why a check of trees does not apply."""
    return (
        None
        if any(map(subject.drafts_trees, subject.targets))
        else "it drafts lines only (`drafts_trees` is False)"
    )


@check("trees-respected", kind="drafter", skip_if=no_trees)
def trees_respected(subject: DrafterSubject) -> None:
    """Trees respect each row's budget and depth.

    Trees of any shape respect each row's budget and depth, 0 among them.
    """
    steps = [((4, 4, 4, 4), (1, 3, 2, 3)), ((4, 0, 1, 2), (3, 0, 1, 3)), ((0, 3, 4, 1), (0, 2, 1, 1))]
    for shape in (TokenTree((-1, -1, 0, 2)), BestFirstTree((1, 2, 2))):
        for driver in drivers(subject, setting=Setting(SamplingSettings(), shape)):
            batch = len(driver.rows)
            for budgets, depths in steps:
                # The core asks for no more tokens than paths of that length can have.
                pairs = zip(budgets[:batch], depths[:batch], strict=True)
                budget = [min(most, sum(shape.widths[:depth])) for most, depth in pairs]
                driver.propose(budget, depth=depths[:batch])
                driver.accept([2, 1, 3, 1][:batch], [3] * batch)


@check("many-rows", kind="drafter")
def many_rows(subject: DrafterSubject) -> None:
    """It drafts for 32 rows at once."""
    batch = 32
    rows = [list(ROWS[row % len(ROWS)]) for row in range(batch)]
    for target in subject.targets:
        begins = [target.begin(row) for row in rows]
        driver = SessionDriver(target, subject.drafter(target), begins, sources=rows, seed=subject.seed)
        _steps(driver, [(3,) * batch] * subject.times(2, 1, "steps"))
        driver.close()


@check("one-token-context", kind="drafter")
def one_token_context(subject: DrafterSubject) -> None:
    """It accepts a context of one token.

    It accepts a context of one token, the shortest that the core ever passes.
    """
    for driver in drivers(subject, [(4,)]):
        _steps(driver, [(3,), (3,)])


@check("empty-context", kind="drafter", required=False, purpose="for use outside of the core")
def empty_context(subject: DrafterSubject) -> None:
    """It accepts an empty context."""
    for target in subject.targets:
        driver = SessionDriver(target, subject.drafter(target), [[]], sources=[[4]], seed=subject.seed)
        driver.draft([3])
        driver.accept([0], [2])
        driver.draft([3])
        driver.close()


@check("full-capacity", kind="drafter")
def full_capacity(subject: DrafterSubject) -> None:
    """It drafts up to `SessionInfo.capacity`.

    It drafts up to the last token that a row can hold, `SessionInfo.capacity`.
    """
    for driver in drivers(subject):
        batch = len(driver.rows)
        for row in driver.rows:
            row.extend((2 + 3 * position) % VOCAB for position in range(len(row), CAPACITY - 9))
        while len(driver.rows[0]) < CAPACITY:
            # The last position is for the target's own token.
            budget = min(4, CAPACITY - 1 - len(driver.rows[0]))
            driver.draft([budget] * batch)
            driver.accept([0] * batch, [3] * batch)


@check("ids-in-range", kind="drafter")
def ids_in_range(subject: DrafterSubject) -> None:
    """Token ids are in the target's vocabulary."""
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        for _ in range(4):
            driver.propose([4] * batch)  # the driver requires ids of the vocabulary
            driver.accept([2] * batch, [5] * batch)


@check("q-sums-to-one", kind="drafter")
def q_sums_to_one(subject: DrafterSubject) -> None:
    """Each q is nonnegative and sums to 1."""
    for driver, row, position, _, q in _positions(subject):
        total = float(q.sum())
        if not abs(total - 1) <= TOLERANCE or bool((q < 0).any()):
            hint = "q holds probabilities, never logits. `request.sample` samples and records it."
            got = f"q = {_numbers(q)} at position {position} of row {row}, with sum {total:.4g}"
            expected = f"numbers of at least 0 with sum 1 (within {TOLERANCE:g})"
            raise driver.failure(got, expected, f"{hint}\n{driver.advice}", cause=FAULTS[BAD_SUM])


@check("q-covers-draft", kind="drafter")
def q_covers_draft(subject: DrafterSubject) -> None:
    """Every draft token has positive probability in q."""
    for driver, row, position, token, q in _positions(subject):
        probability = float(q[token]) if 0 <= token < VOCAB else 0.0
        if not probability > 0:
            where = f"position {position} of row {row}"
            got = f"q({token}) = {probability:g} for the draft token at {where}: {_numbers(q)}"
            expected = "more than 0: a token that was sampled from q has a positive probability"
            raise driver.failure(got, expected, driver.advice, cause=FAULTS[BAD_TOKEN])


def _positions(subject: DrafterSubject) -> Iterator[tuple[SessionDriver, int, int, int, torch.Tensor]]:
    """Yield every draft position of some steps: session, row, position, token and q `[V]`."""
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        for step in range(4):
            for row, draft in enumerate(driver.draft([4] * batch)):
                for position, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
                    yield driver, row, position, token, q
            driver.accept([step] * batch, [5] * batch)


@check("proposal-valid", kind="drafter")
def proposal_valid(subject: DrafterSubject) -> None:
    """Proposals pass the core's validation."""
    for driver in drivers_for_all_settings(subject):
        batch = len(driver.rows)
        proposal = driver.propose([4] * batch)
        depth = None if driver.tree is None else (driver.tree.depth,) * batch
        device = driver.target.loaded.device
        checked, faults = validate(proposal, (4,) * batch, VOCAB, device, depth)
        code = FINE if faults is None else worst(faults.tolist(), checked.lengths)
        if code != FINE:
            expected = f"a {type(proposal.q).__name__} as its docstring says"
            raise driver.failure(FAULTS[code].format(last=VOCAB - 1), expected, driver.advice, cause=FAULTS[code])


@check("draft-sampled-from-q", kind="drafter")
def draft_sampled_from_q(subject: DrafterSubject) -> None:
    """Draft tokens follow their q (chi-square)."""
    for name, target in situations(subject, every=True):
        _require_sampled_from_q(subject, target, name)


def _require_sampled_from_q(subject: DrafterSubject, target: TinyTarget, name: str) -> None:
    """Sample drafts, and more as long as they fit q neither well nor badly; see `require_distribution`."""
    groups: list[_Groups] = [defaultdict(list) for _ in range(DRAFT_DEPTH)]
    batch = 200
    # One session per draft is slow where batches are not supported.
    size, limit = subject.samples(min(MIN_DRAFTS, 100 * batch), min(MAX_DRAFTS, 800 * batch), batch, seconds=2.0)
    batch, drafts, sessions = min(batch, size), 0, 0
    while True:
        while drafts < size:
            begins = [target.begin()] * batch
            seed = subject.seed + 1 + sessions
            drafter = subject.drafter(target)
            sampling, tree = SETTINGS[name].sampling, SETTINGS[name].tree
            driver = SessionDriver(target, drafter, begins, sampling=sampling, tree=tree, seed=seed)
            _collect(driver, groups, prefix=12 if sessions % 3 == 0 else 0)
            driver.close()
            drafts, sessions = drafts + batch, sessions + 1
        counts = [_counts(one) for one in groups]
        p_values = [p_of_groups(one) for one in counts]
        if min(p_values) < SUSPICIOUS:
            position = p_values.index(min(p_values))
            raise _not_from_q(counts[position], f"position {position} ({name}, on {target})", min(p_values))
        if DRAFT_DEPTH * min(p_values) >= UNREMARKABLE or size >= limit:
            return
        size *= 2


def _collect(driver: SessionDriver, groups: Sequence[_Groups], prefix: int) -> None:
    """Draft in the second step (the first is without hidden states), and group the tokens.

    Args:
        driver: The session.
        groups: The groups of each draft position.
        prefix: How many tokens to commit first, for longer contexts.
    """
    batch = len(driver.rows)
    for position in range(prefix):
        driver.commit_unused([[(2, 3, 5, 4, 0)[position % 5]]] * batch)
    driver.propose([0] * batch)
    driver.accept([0] * batch, [3] * batch)
    for draft in driver.draft([DRAFT_DEPTH] * batch):
        rounded = torch.stack(draft.q).mul(1e4).round().tolist() if draft.q else []
        for position, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            # Tokens after the same draft tokens and with the same q are one sample.
            groups[position][draft.tokens[:position], tuple(rounded[position])].append((token, q))


def _counts(groups: _Groups) -> list[tuple[list[float], list[float]]]:
    """Return observed and expected counts of each group."""
    counts = []
    for draws in groups.values():
        observed = [0.0] * VOCAB
        for token, _ in draws:
            if 0 <= token < VOCAB:
                observed[token] += 1
        counts.append((observed, (draws[0][1] * sum(observed)).tolist()))
    return counts


def _not_from_q(counts: Sequence[tuple[list[float], list[float]]], where: str, p: float) -> CheckFailure:
    observed, expected = max(counts, key=lambda pair: sum(abs(a - b) for a, b in zip(*pair, strict=True)))
    return CheckFailure(
        f"compared {sum(sum(one) for one, _ in counts):.0f} draft tokens with their q, at {where}",
        f"chi-square p-value {p:.1e}\nwhere q was {_numbers(torch.tensor(expected) / sum(expected))}, ids 0 to "
        f"{VOCAB - 1} were drafted {[round(n) for n in observed]} times",
        f"about {[round(n) for n in expected]} times; a p-value of at least {SUSPICIOUS:g}",
        "q must be the distribution that the token was sampled from, after temperature and the like. A sampled "
        "token must be proposed whatever it is. `request.sample` samples and records q.",
    )


def _numbers(q: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" if math.isfinite(value) else str(value) for value in q.tolist()) + "]"


@check("same-seed-same-draft", kind="drafter")
def same_seed_same_draft(subject: DrafterSubject) -> None:
    """The same seed gives the same drafts."""
    for name, target in situations(subject):
        first: list[list[tuple[int, ...]]] = []
        for _ in range(2):
            for driver in drivers(subject, setting=SETTINGS[name], targets=[target]):
                batch = len(driver.rows)
                drafts = []
                for step in range(4):
                    drafts.append([draft.tokens for draft in driver.draft([4] * batch)])
                    driver.accept([step] * batch, [2] * batch)
                first = first or drafts
                if first != drafts:
                    hint = (
                        "All random numbers come from the core, which has one generator per row. Sample with "
                        "`request.sample` or `request.draw`."
                    )
                    raise driver.failure(f"the drafts {drafts}", f"those of the first session: {first}", hint)


@check("on-device", kind="drafter", required=False, purpose="for speed on a GPU")
def on_device(subject: DrafterSubject) -> None:
    """Draft tokens and q are on the target's device."""
    for driver in drivers(subject):
        proposal = driver.propose([4] * len(driver.rows))
        device = driver.target.loaded.device
        tensors = [proposal.tokens, *vars(proposal.q).values()]
        elsewhere = {str(tensor.device) for tensor in tensors if tensor.device.type != device.type}
        if elsewhere and proposal.longest:
            raise driver.failure(f"tensors on {', '.join(sorted(elsewhere))}", f"tensors on {device}")


@check("drafts-tokens", kind="drafter", required=False, purpose="to know that the others saw drafts")
def drafts_tokens(subject: DrafterSubject) -> None:
    """It drafts at least one token.

    It drafts at least one token: a drafter that never does passes many checks without proving much.
    """
    drafted = 0
    for driver in drivers(subject):
        drafted += _steps(driver, [(4, 4, 4, 4)] * 4)
    if not drafted:
        raise driver.failure("no draft tokens in four steps, on any target", "at least one draft token")
