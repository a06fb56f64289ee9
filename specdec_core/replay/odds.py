"""What a drafter would have done along a recorded text, whatever gamma is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.theory.replay import TextLaw

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TextOdds:
    """The acceptance of a drafter along one recorded text of L tokens, with drafts of up to K tokens.

    Attributes:
        accept: `[L, K]` float64. `accept[i, j]` is the probability that token j of a draft that begins at position
            i is accepted, given the text and that the tokens before it in the draft were. What lies beyond the
            text or the draft has no meaning.
        offered: `[L]` int64, the length of the draft that begins at each position.
        confidence: `[L, K]` float32, what a controller's `keep_drafting` would be told after each token: q of the
            text's token, and for greedy drafts the softmax probability of the argmax. NaN where it is not asked.
        tokens: `[L]` int64, the text.
        limit: The most tokens that the text could have had.
        number: Number of the prompt.
        sample: Number of the text of this prompt.
        by_budget: The same for budgets of 1, 2, ... K tokens, for drafters whose drafts depend on it; else empty.
    """

    accept: NDArray[np.float64]
    offered: NDArray[np.int64]
    confidence: NDArray[np.float32]
    tokens: NDArray[np.int64]
    limit: int
    number: int = 0
    sample: int = 0
    by_budget: tuple[TextOdds, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """K, the longest draft that is known."""
        return int(self.accept.shape[1])

    def room(self, position: int) -> int:
        """Return how many tokens may be drafted at a position: the last place is for the target's own token."""
        return self.limit - position - 1

    def asked(self, budget: int) -> TextOdds:
        """Return the acceptance of drafts for which a number of tokens was asked."""
        return self.by_budget[budget - 1] if self.by_budget and budget else self

    def law(self, gamma: int) -> TextLaw:
        """Return what follows for a fixed gamma, at most K."""
        if not self.by_budget or not gamma:
            return TextLaw(self.accept, self.offered, self.limit)
        # Near the limit, fewer tokens are asked for.
        budgets = np.clip(self.limit - np.arange(len(self)) - 1, 1, gamma)
        each = [self.asked(int(budget)) for budget in budgets]
        accept = np.stack([one.accept[i] for i, one in enumerate(each)])
        offered = np.array([one.offered[i] for i, one in enumerate(each)], dtype=np.int64)
        return TextLaw(accept, offered, self.limit)


def total_tokens(odds: Sequence[TextOdds]) -> int:
    """Return the number of tokens of some texts."""
    return sum(map(len, odds))
