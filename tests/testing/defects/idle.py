"""Drafters that are right and of little use: only optional checks see it."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.border import DraftRequest, Proposal
from tests.testing.defects.healthy import Guessing, Stateless


class NeverDrafts(Guessing):
    """Has no guess, ever: every test of exactness passes.

    Seen with prompt lookup whose shortest match is longer than any that occurs.
    """

    def guess(self, tokens: Sequence[int], budget: int) -> list[int]:
        return []


class NeedsAToken(Stateless):
    """Looks at the last token, and fails where there is none."""

    def propose(self, request: DraftRequest) -> Proposal:
        return Proposal.from_rows(
            [[row[-1]] * budget for row, budget in zip(request.tokens, request.budget, strict=True)]
        )
