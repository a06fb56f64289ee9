"""Checks of a drafter's proposals: how many tokens, which ids, and whether they were sampled from q.

The driver of a session requires of each proposal what the core does: its form, ids, budgets and sums of q.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import pytest
import torch

from specdec_core.interface import BestFirstTree, TokenTree
from specdec_core.interface.settings import SamplingSettings
from specdec_core.registry.nesting import nested_settings
from specdec_core.testing.checks.drafter import ROWS, SETTINGS, DrafterChecks, Setting, numbers
from specdec_core.testing.failures import CheckFailure
from specdec_core.testing.harness.enumeration import SUSPICIOUS, UNREMARKABLE, p_of_groups
from specdec_core.testing.harness.session_driver import CAPACITY, SessionDriver
from specdec_core.testing.harness.tiny_target import PROMPT, VOCAB, TinyTarget

DRAFT_DEPTH = 4
MIN_DRAFTS, MAX_DRAFTS = 600, 4800
"""How many drafts are sampled at first, and at most, to compare them with their q."""
_BUDGETS = ((4, 0, 2, 1), (0, 0, 0, 0), (1, 1, 1, 1), (0, 3, 0, 4), (4, 4, 4, 4), (1, 4, 0, 0), (0, 0, 3, 2))

_Groups: TypeAlias = dict[tuple[object, ...], list[tuple[int, torch.Tensor]]]
"""Draft tokens with their q, grouped by what makes them one sample."""


class ProposalChecks(DrafterChecks):
    """Checks of proposals."""

    def test_budgets_respected(self) -> None:
        """No draft is longer than its row's budget, which may be 0; for one row, some, and 32."""
        for rows, settings in ((ROWS, SETTINGS), (((4,),), SETTINGS[:1]), (ROWS * 8, SETTINGS[:1])):
            for driver in self.sessions(rows, settings):
                batch = len(rows)
                for step, budget in enumerate(_BUDGETS):
                    driver.draft([budget[row % 4] for row in range(batch)])
                    driver.accept([1] * batch, [(2 + step) % VOCAB] * batch)

    def test_trees_respected(self) -> None:
        """Trees of any shape respect each row's budget and depth, 0 among them."""
        self.skip_unless_trees()
        for shape in (TokenTree((-1, -1, 0, 2)), BestFirstTree((1, 2, 2))):
            for driver in self.sessions(settings=[Setting(SamplingSettings(), shape)]):
                for depth in ((1, 3, 2, 3), (3, 0, 1, 3), (0, 2, 1, 1)):
                    driver.draft([4] * 4, depth=depth)
                    driver.accept([2, 1, 3, 1], [3] * 4)

    def test_full_capacity(self) -> None:
        """It drafts up to the last token that a row can hold, `SessionInfo.capacity`."""
        for driver in self.sessions(settings=SETTINGS[:1]):
            batch = len(driver.rows)
            for row in driver.rows:
                row.extend((2 + 3 * position) % VOCAB for position in range(len(row), CAPACITY - 9))
            while len(driver.rows[0]) < CAPACITY:
                # The last position is for the target's own token.
                driver.draft([min(4, CAPACITY - 1 - len(driver.rows[0]))] * batch)
                driver.accept([0] * batch, [3] * batch)

    def test_early_stop(self) -> None:
        """It proposes nothing after a controller stops its draft."""
        asked: list[int] = []

        def stop(confidence: Sequence[float]) -> list[bool]:
            asked.append(len(confidence))
            return [False] * len(confidence)

        for driver in self.sessions(keep_drafting=stop):
            batch = len(driver.rows)
            for _ in range(3):
                asked.clear()
                longest = max(len(draft.tokens) for draft in driver.draft([4] * batch))
                if asked and longest > 1 and len(asked) >= longest:
                    got = f"drafts of up to {longest} tokens, although all rows were stopped after the first"
                    hint = "Sample while `request.wants_more()`, and return `request.proposal()`."
                    raise driver.failure(got, "drafts of one token", hint)
                driver.accept([1] * batch, [2] * batch)

    def test_draft_sampled_from_q(self) -> None:
        """Draft tokens follow their q (chi-square)."""
        for target, setting in self.cases():
            self._require_sampled_from_q(target, setting)

    def _require_sampled_from_q(self, target: TinyTarget, setting: Setting) -> None:
        """Sample drafts, and more as long as they fit q neither well nor badly; see `require_distribution`."""
        groups: list[_Groups] = [defaultdict(list) for _ in range(DRAFT_DEPTH)]
        size, batch, sessions = MIN_DRAFTS, 200, 0
        while True:
            while sessions * batch < size:
                seed = self.seed + 1 + sessions
                driver = self.open(target, None, [PROMPT] * batch, setting, seed=seed)
                _collect(driver, groups, prefix=12 if sessions % 3 == 0 else 0)
                driver.close()
                sessions += 1
            counts = [_counts(one) for one in groups]
            p_values = [p_of_groups(one) for one in counts]
            if min(p_values) < SUSPICIOUS:
                position = p_values.index(min(p_values))
                raise _not_from_q(counts[position], f"position {position} ({setting}, on {target})", min(p_values))
            if DRAFT_DEPTH * min(p_values) >= UNREMARKABLE or size >= MAX_DRAFTS:
                return
            size *= 2

    def test_same_seed_same_draft(self) -> None:
        """The same seed gives the same drafts."""
        for driver in self.sessions():
            other, batch = driver.reopen(), len(driver.rows)
            for step in range(4):
                one, two = ([draft.tokens for draft in each.draft([4] * batch)] for each in (driver, other))
                if one != two:
                    hint = "Draw with `request.sample` or `request.draw`: the core has one generator for each row."
                    raise driver.failure(f"the drafts {one}", f"those of another session: {two}", hint)
                for each in (driver, other):
                    each.accept([step] * batch, [2] * batch)

    def test_hidden_states_declared(self) -> None:
        """Its settings declare `needs_hidden_states` if it names `hidden_layers` itself."""
        for target in self.targets:
            drafter = self.drafter(target)
            declared = self.needs.needs_hidden_states
            if declared != bool(drafter.hidden_layers) and not list(nested_settings(drafter.config)):
                raise CheckFailure(
                    f"compared hidden_layers of {type(drafter).__name__} with needs_hidden_states of its settings",
                    f"hidden_layers = {tuple(drafter.hidden_layers)}, needs_hidden_states = {declared}",
                    "needs_hidden_states = True if it names layers, since the core checks what targets have",
                )

    @pytest.mark.xfail(reason="optional: if it fails, the others prove little", strict=False)
    def test_drafts_tokens(self) -> None:
        """It drafts at least one token."""
        drafted = 0
        for driver in self.sessions(settings=SETTINGS[:1]):
            for _ in range(4):
                drafted += sum(len(draft.tokens) for draft in driver.draft([4] * len(driver.rows)))
                driver.accept([1] * len(driver.rows), [3] * len(driver.rows))
        if not drafted:
            raise driver.failure("no draft tokens in four steps, on any target", "at least one draft token")


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
    driver.draft([0] * batch)
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
            observed[token] += 1
        counts.append((observed, (draws[0][1] * len(draws)).tolist()))
    return counts


def _not_from_q(counts: Sequence[tuple[list[float], list[float]]], where: str, p: float) -> CheckFailure:
    observed, expected = max(counts, key=lambda pair: sum(abs(a - b) for a, b in zip(*pair, strict=True)))
    return CheckFailure(
        f"compared {sum(sum(one) for one, _ in counts):.0f} draft tokens with their q, at {where}",
        f"chi-square p-value {p:.1e}\nwhere q was {numbers(torch.tensor(expected) / sum(expected))}, ids 0 to "
        f"{VOCAB - 1} were drafted {[round(n) for n in observed]} times",
        f"about {[round(n) for n in expected]} times; a p-value of at least {SUSPICIOUS:g}",
        "q must be the distribution that the token was sampled from, after temperature and the like. A sampled "
        "token must be proposed whatever it is. `request.sample` samples and records q.",
    )
