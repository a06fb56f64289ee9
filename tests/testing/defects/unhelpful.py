"""Drafters that are correct but useless, which only optional checks catch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.interface import DraftRequest, Proposal
from tests.testing.defects.healthy import Deterministic, Stateless


class NeverDrafts(Deterministic):
    """Never proposes anything, so that every check of exactness passes.

    Seen with prompt lookup whose shortest match is longer than any that occurs.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return []


class NeedsAToken(Stateless):
    """Looks at the last token, and fails where there is none."""

    def propose(self, request: DraftRequest) -> Proposal:
        return Proposal.from_rows(
            [[row[-1]] * budget for row, budget in zip(request.tokens, request.budget, strict=True)]
        )
