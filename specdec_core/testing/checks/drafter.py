"""The base of the checks of a drafter: the targets that it is checked on, and its sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from specdec_core.interface import Drafter, DrafterConfig, TokenTree
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.testing.harness.session_driver import Draft, SessionDriver
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget, tiny_target
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
    driver: SessionDriver, got: Sequence[Draft], expected: Sequence[Draft], what: str, hint: str | None = None
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
    """
    for row, (one, other) in enumerate(zip(got, expected, strict=True)):
        fault = _difference(one, other)
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
