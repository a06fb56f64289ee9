"""How many tokens a step brings, for every gamma: acceptance by position, as it was of late."""

from __future__ import annotations

from itertools import accumulate

_FIRST = 0.7
"""What is taken for the rate of the first position before anything is known; it weighs as one observation."""
_LARGE = 1e12


class AcceptanceByPosition:
    """Counts how often each position of a draft was drafted and accepted, once those before it were.

    No independence is assumed: the rates are those of each position. A draft that comes out shorter than asked
    for counts as refused behind its end, so that h_i is what one gets who asks for i tokens,

        h_i = P(position i drafted and accepted | gamma >= i, position i - 1 accepted),

    and a step in which gamma tokens are asked for brings 1 + sum_{i <= gamma} prod_{j <= i} h_j of them. Pooled
    over the rows of a batch, prod_{j <= i} h_j is exactly the share of the rows that keep i tokens, however unlike
    the rows are.

    References:
        Equation (1) of arXiv 2211.17192, by position.

    Args:
        most: The longest draft.
        memory: Steps after which an observation weighs 1 / e of a new one.
    """

    def __init__(self, most: int, memory: float) -> None:
        # A new observation weighs more than those before it, which is as if those faded, and touches none of them.
        self._weight = 1.0
        self._growth = 1 + 1 / memory
        self._tried = [0.0] * most
        self._kept = [0.0] * most

    def pass_step(self) -> None:
        """Let time pass: a step was taken, with a draft or without."""
        self._weight *= self._growth
        if self._weight > _LARGE:
            self._tried = [count / self._weight for count in self._tried]
            self._kept = [count / self._weight for count in self._kept]
            self._weight = 1.0

    def learn(self, gamma: int, accepted: int, committed: int) -> None:
        """Take in what became of a row that was to draft `gamma` tokens; nothing, of one that had ended."""
        weight = self._weight
        kept = min(accepted, gamma)
        for position in range(kept):
            self._tried[position] += weight
            self._kept[position] += weight
        # The next one was refused, or was not there to be accepted; unless the row ended before it.
        if kept < gamma and committed > kept:
            self._tried[kept] += weight

    def tokens(self, extra: float = 0.0) -> list[float]:
        """Return the tokens that a row is expected to gain in a step, for gamma = 0, 1, ... most.

        Args:
            extra: Successes added to every position, beside as many trials: what may be hoped for.
        """
        rate, survivors = _FIRST, [1.0]
        scale = 1 / self._weight
        for tried, kept in zip(self._tried, self._kept, strict=True):
            # What was never seen at a position is taken to be as before it.
            rate = (kept * scale + rate + extra) / (tried * scale + 1 + extra)
            survivors.append(survivors[-1] * rate)
        return list(accumulate(survivors))
