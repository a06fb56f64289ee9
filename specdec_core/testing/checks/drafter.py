"""The base of the checks of a drafter, with its targets and sessions, and the checks of its proposals."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest
import torch

from specdec_core.interface import BestFirstTree, ConfigError, Drafter, DrafterConfig, TokenTree
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.registry.nesting import nested_settings
from specdec_core.testing.failures import CheckFailure
from specdec_core.testing.harness.enumeration import SUSPICIOUS, UNREMARKABLE, p_of_groups
from specdec_core.testing.harness.session_driver import CAPACITY, Draft, SessionDriver
from specdec_core.testing.harness.tiny_target import PROMPT, VOCAB, TinyTarget, tiny_target
from specdec_core.testing.kit import Kit


@dataclass(frozen=True)
class Setting:
    """What a drafter is asked for: the sampling settings, and the shape of a draft, None for lines."""

    sampling: SamplingSettings
    tree: TreeShape | None = None


TREE = TokenTree((-1, -1, 1, 1))
_TOP_K = SamplingSettings(temperature=0.7, top_k=3)
SETTINGS = (
    Setting(SamplingSettings()),
    Setting(_TOP_K),
    Setting(_TOP_K, TREE),
    Setting(SamplingSettings(temperature=0)),
)
"""What most checks ask for; trees of drafters that draft them."""
ROWS = (PROMPT, (4,), (5, 2, 0, 3, 5, 2, 0), (3, 3, 3))
"""Rows of different lengths, one of a single token."""

ATOL = 1e-4
"""Difference between the q of two forward passes over the same tokens, one with a cache and one without."""


class DrafterChecks(Kit):
    """Builds the drafter, and opens sessions."""

    kind = "drafter"

    config: ClassVar[type[DrafterConfig]] = DrafterConfig
    """Class of the settings of a drafter that `make` builds: it declares which targets it supports."""

    @property
    def needs(self) -> type[DrafterConfig]:
        """The drafter's declared needs."""
        declared = self.config if self._spec is None else self._spec.config
        return declared if issubclass(declared, DrafterConfig) else DrafterConfig

    @property
    def targets(self) -> tuple[TinyTarget, ...]:
        """The targets that it supports: decoder-only, encoder-decoder, or both.

        They have a tokenizer if it declares that it needs one, or says so (with a ConfigError) when it is built:
        the need may depend on the settings.
        """
        return self.once("targets", self._supported)

    def _supported(self) -> tuple[TinyTarget, ...]:
        kinds = {"any": (False, True), "decoder-only": (False,), "encoder-decoder": (True,)}[self.needs.targets]
        tokenizer = self.needs.needs_tokenizer
        if not tokenizer:
            try:
                self.make(tiny_target(kinds[0], self.device).info)
            except ConfigError as error:
                tokenizer = "tokenizer" in str(error)
            except Exception:  # for the checks to report
                pass
        return tuple(tiny_target(encoder, self.device, tokenizer=tokenizer) for encoder in kinds)

    def drafter(self, target: TinyTarget) -> Drafter:
        """Return the drafter for a target, which is built once."""
        return self.once(("drafter", target), lambda: self.fresh(target))

    def fresh(self, target: TinyTarget) -> Drafter:
        """Build another drafter for a target."""
        return self.build(Drafter, target.info)  # type: ignore[type-abstract]

    def open(
        self,
        target: TinyTarget,
        drafter: Drafter | None = None,
        rows: Sequence[Sequence[int]] = ROWS,
        setting: Setting = SETTINGS[0],
        **options: Any,
    ) -> SessionDriver:
        """Open a session over some rows. The options are those of `SessionDriver`."""
        return SessionDriver(
            target,
            drafter or self.drafter(target),
            [target.begin(row) for row in rows],
            sources=rows,
            sampling=setting.sampling,
            tree=setting.tree,
            **{"seed": self.seed, **options},
        )

    def sessions(
        self, rows: Sequence[Sequence[int]] = ROWS, settings: Sequence[Setting] = SETTINGS, **options: Any
    ) -> Iterator[SessionDriver]:
        """Yield a session for each target and each setting; they are closed after a success."""
        for target, setting in self.cases(settings):
            driver = self.open(target, None, rows, setting, **options)
            yield driver
            driver.close()

    def cases(self, settings: Sequence[Setting] = SETTINGS) -> Iterator[tuple[TinyTarget, Setting]]:
        """Yield each target with each setting; trees if it drafts them."""
        for target in self.targets:
            for setting in settings:
                if setting.tree is None or self.drafter(target).drafts_trees:
                    yield target, setting

    def skip_unless_trees(self) -> None:
        """Skip the check of a drafter of lines."""
        if not any(self.drafter(target).drafts_trees for target in self.targets):
            pytest.skip("it drafts lines only (`drafts_trees` is False)")

    @property
    def remembers(self) -> bool:
        """Whether it declares that it keeps knowledge between requests."""
        return any(self.drafter(target).remembers for target in self.targets)


def require_same_drafts(
    driver: SessionDriver,
    got: Sequence[Draft],
    expected: Sequence[Draft],
    what: str,
    hint: str | None = None,
    *,
    tokens: bool = False,
) -> None:
    """Fail unless the drafts of every row are equal, up to the first draft token that differs.

    A drafter may consume random numbers differently after different steps, as a hierarchy does: that changes the
    sampled tokens, but no distribution.

    Args:
        driver: The session.
        got: Its drafts.
        expected: The drafts that it should have made.
        what: What `expected` is, for messages.
        hint: What usually fixes it.
        tokens: Whether the tokens must be equal, too, as the random numbers are.
    """
    for row, (one, other) in enumerate(zip(got, expected, strict=True)):
        fault = _difference(one, other)
        if fault is None and tokens and one.tokens != other.tokens:
            fault = "its tokens differ"
        if fault is not None:
            drafted = f"row {row}: the draft {list(one.tokens)}; {fault}"
            raise driver.failure(drafted, f"{what}: {list(other.tokens)}", hint)


def _difference(used: Draft, fresh: Draft) -> str | None:
    """Return how two drafts differ other than by chance; None where they do not."""
    for position, (one, other) in enumerate(zip(used.q, fresh.q, strict=False)):
        if not torch.allclose(one, other, atol=ATOL, rtol=1e-3):
            return f"q at position {position} is {numbers(one)}, not {numbers(other)}"
        if used.tokens[position] != fresh.tokens[position]:
            return None
        if (used.parents and used.parents[position]) != (fresh.parents and fresh.parents[position]):
            return f"its parents are {used.parents}, not {fresh.parents}"
    if len(used.tokens) != len(fresh.tokens):
        return f"it has {len(used.tokens)} tokens, not {len(fresh.tokens)}"
    return None


def numbers(q: torch.Tensor) -> str:
    """Return probabilities as text."""
    return "[" + ", ".join(f"{value:.3g}" for value in q.tolist()) + "]"


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
                one, two = (each.draft([4] * batch) for each in (driver, other))
                hint = "Draw with `request.sample` or `request.draw`: the core has one generator for each row."
                require_same_drafts(driver, one, two, "the draft of another session", hint, tokens=True)
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
    return [
        (np.bincount([token for token, _ in draws], minlength=VOCAB).tolist(), (draws[0][1] * len(draws)).tolist())
        for draws in groups.values()
    ]


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
