"""How long a step takes, for every gamma: measured, on a machine that is noisy and has other things to do."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUTLIER = 3.0
"""Deviations behind which a step that took longer is cut, and one that took less overrules those before it."""
_DOUBT = 1.2
"""How many times what was expected the first step of its length may take to be believed."""
_UNTRIED = 0.1
"""What a draft token is taken to cost, in plain steps, before any was drafted."""


class StepSeconds:
    """Learns what steps take whose longest draft has k tokens, in units of a plain step.

    A step takes (how busy the machine is) x (what its draft costs). The first factor is common to all lengths
    and follows every step; the second is what choices are made by, and moves slowly. So a machine that gets
    slower does not make the one length that happens to be in use look dear.

    What a step was is numbered: 0 is a plain one, 1 one in which the drafter was asked and had nothing, 1 + k one
    with k draft tokens.

    Args:
        most: The longest draft.
        memory: Steps after which an observation weighs 1 / e of a new one.
        given: What steps take with k = 0, 1, ... most draft tokens, in any unit: then nothing is measured.
    """

    def __init__(self, most: int, memory: float, given: Sequence[float] | None = None) -> None:
        self._fade = 1 - 1 / memory
        self.steps = 0
        """Steps so far."""
        self._given = None if given is None else [seconds / given[0] for seconds in given]
        self._level = 0.0 if given is None else 1.0  # seconds of a plain step on the machine as it is
        self._cost = [1.0] * (most + 2)  # by kind: what a step takes, in plain ones
        self._weight = [0.0] * (most + 2)  # by kind: observations behind it, faded up to ...
        self._seen = [0] * (most + 2)  # ... this step
        self._noise = 0.1  # relative deviation of single steps
        self._slope = 0.0  # the drafter's own time for a token, in plain steps
        self._asked = [0.0] * (most + 1)  # by k: steps in which gamma was at least k ...
        self._reached = [0.0] * (most + 1)  # ... and the longest draft, too
        self.longest = 0 if given is None else most
        """The longest draft that was measured."""

    @property
    def known(self) -> bool:
        """Whether a plain step was measured: the unit of all else."""
        return self._level > 0

    def pass_step(self, gamma: int, longest: int) -> None:
        """Let time pass; take in how long the longest draft became where `gamma` tokens were asked for."""
        self.steps += 1
        for k in range(1, gamma + 1):
            self._asked[k] = self._asked[k] * self._fade + 1
            self._reached[k] = self._reached[k] * self._fade + (longest >= k)

    def in_plain_steps(self, seconds: float) -> float:
        """Return what a step took that is not to be learnt from, in units of a plain one; not more than four."""
        return min(seconds / self._level, 4.0) if self.known and self._given is None else 1.0

    def learn(self, kind: int, seconds: float, draft_seconds: float) -> float:
        """Take in what a step of a kind took; return it in units of a plain one, outliers cut."""
        if self._given is not None:
            return self._given[max(0, kind - 1)]
        if not self.known:
            if kind == 0:
                self._level, self._weight[0], self._seen[0] = seconds, 1.0, self.steps
            return 1.0
        weight = self._weight[kind] * self._fade ** (self.steps - self._seen[kind])
        self._seen[kind] = self.steps
        if not weight:
            return self._begin(kind, seconds / self._level, draft_seconds / self._level)
        ratio = seconds / (self._level * self._cost[kind])
        width = _OUTLIER * self._noise
        self._noise += 0.05 * (1.25 * min(abs(ratio - 1), 1.0) - self._noise)
        ratio = min(ratio, 1 + width)
        if ratio < 1 - width:
            weight = 0.0  # other work makes steps late, and never early: those before were disturbed
        else:
            self._level *= 1 + 0.1 * (ratio - 1)
        self._weight[kind] = weight + 1
        self._cost[kind] *= 1 + (ratio - 1) / (weight + 1)
        return ratio * self._cost[kind]

    def _begin(self, kind: int, cost: float, draft_cost: float) -> float:
        """Take in the first step of a kind; if it took much more than was expected, not all of it is believed."""
        k = max(0, kind - 1)
        believed = min(cost, _DOUBT * self._line(*self._known()[:2])[k])
        self._cost[kind], self._weight[kind] = believed, 1.0 if believed == cost else 0.5
        cost = believed
        if k:
            self._slope = min(draft_cost, cost) / k
            self.longest = max(self.longest, k)
        return cost

    def expected(self) -> tuple[list[float], list[float]]:
        """Return what a step takes for gamma = 0, 1, ... most, in plain steps; and what it may take at best."""
        if self._given is not None:
            seconds = self._for_gamma(self._given, self._given[0])
            return seconds, seconds
        lengths, values, weights = self._known()
        least = [value / (1 + self._noise / sqrt(weight)) for value, weight in zip(values, weights, strict=True)]
        vain = self._cost[1] if self._weight[1] else values[0]
        line = self._line(lengths, values)
        return self._for_gamma(line, vain), self._for_gamma(self._least(lengths, least), vain)

    def _known(self) -> tuple[list[int], list[float], list[float]]:
        """Return the lengths of draft that were measured, what they cost, never falling, and their weights."""
        kinds = [kind for kind, weight in enumerate(self._weight) if weight and kind != 1]
        weights = [self._weight[kind] * self._fade ** (self.steps - self._seen[kind]) for kind in kinds]
        return (
            [max(0, kind - 1) for kind in kinds],
            _rising([self._cost[kind] for kind in kinds], weights),
            weights,
        )

    def _line(self, lengths: list[int], values: list[float]) -> list[float]:
        """Return what k = 0, 1, ... most draft tokens cost: what lies between measured lengths lies on a line."""
        costs: list[float] = []
        for (low, high), (left, right) in zip(pairwise(lengths), pairwise(values), strict=True):
            slope = (right - left) / (high - low)
            costs += [left + slope * n for n in range(high - low)]
        last = lengths[-1]
        slope = max(self._slope, (values[-1] - values[0]) / last) if last else _UNTRIED
        return costs + [values[-1] + slope * n for n in range(len(self._asked) - last)]

    def _least(self, lengths: list[int], values: list[float]) -> list[float]:
        """Return what k = 0, 1, ... most draft tokens cost at best: more of them are verified for nothing."""
        costs: list[float] = []
        for low, high, left in zip(lengths, [*lengths[1:], len(self._asked)], values, strict=True):
            costs += [left + self._slope * n for n in range(high - low)]
        return costs

    def _for_gamma(self, costs: Sequence[float], vain: float) -> list[float]:
        """Return what is to be expected when gamma tokens are asked for, of which fewer may be drafted."""
        seconds = before = vain
        share, result = 1.0, [costs[0]]
        for k in range(1, len(costs)):
            share = min(share, (self._reached[k] + share) / (self._asked[k] + 1))
            seconds += share * (costs[k] - before)
            before = costs[k]
            result.append(seconds)
        return result


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """Return the nearest values that never fall, by weighted least squares.

    Where a longer draft seems to take less than a shorter one, noise is the likelier reason. Where it does take
    less, the longer one is preferred at equal cost all the same.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, heavy, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, more, width = blocks.pop()
            mean = (before * more + mean * heavy) / (more + heavy)
            heavy, count = heavy + more, count + width
        blocks.append((mean, heavy, count))
    return [mean for mean, _, count in blocks for _ in range(count)]
