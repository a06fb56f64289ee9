"""The hierarchical drafter: a model that drafts for the target, and is itself accelerated by a drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_core.border import (
    Drafter,
    DraftLoop,
    DraftRequest,
    DraftSession,
    GammaController,
    Outcome,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from specdec_core.errors import PluginError
from specdec_drafters.configs import HierarchicalConfig
from specdec_drafters.draft_model import load_draft_model
from specdec_drafters.nested import make_nested

if TYPE_CHECKING:
    from collections.abc import Sequence


class HierarchicalDrafter(Drafter):
    """Drafts with a model as `transformer` does, and has another drafter guess for that model.

    The level below makes the middle model faster and changes none of its draws: each draft token comes from the
    middle model's own adjusted distribution, so that q is exact, to any depth. What the target refuses is taken
    back on every level.

    In Python, the settings may hold a drafter and a controller as well as the settings of such.

    References:
        Section 6 of arXiv 2211.17192 (a hierarchical version of the algorithm), with Algorithm 1 on each level.
    """

    Config = HierarchicalConfig

    def __init__(self, config: HierarchicalConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.loaded = load_draft_model(config, target, "hierarchical")
        # Drafts are counted in the target's vocabulary on every level, also where the middle model pads its own.
        own = self.loaded.info(target.folder)
        below = replace(own, vocab_size=target.vocab_size, build=target.build)
        self.drafter: Drafter = make_nested("drafter", config.drafter, below, "hierarchical")
        self.gamma: GammaController = make_nested("gamma", config.gamma, below, "hierarchical")

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch with an empty cache, on this level and below."""
        if session.loop is None:
            raise PluginError(
                "drafter 'hierarchical' decodes by an inner loop, which a Decoder opens for it (SessionInfo.loop)."
            )
        return _HierarchicalSession(session.loop(self.loaded, self.drafter, self.gamma))


class _HierarchicalSession(DraftSession):
    def __init__(self, loop: DraftLoop) -> None:
        self._loop = loop

    def propose(self, request: DraftRequest) -> Proposal:
        return self._loop.propose(request)

    def commit(self, outcome: Outcome) -> None:
        self._loop.commit(outcome)

    def rollback(self, lengths: Sequence[int]) -> None:
        self._loop.rollback(lengths)

    def close(self) -> None:
        self._loop.close()
