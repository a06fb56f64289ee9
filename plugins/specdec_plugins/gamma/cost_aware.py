"""The cost-aware gamma controller: learns the gamma with the most tokens per second, which may be 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite, sqrt
from typing import Annotated

from pydantic import Field, model_validator

from specdec_core.costs import interpolated
from specdec_core.interface import BatchInfo, GammaController, GammaSession, PluginConfig, StepReport

_FIRST_GAMMA = 2
"""Gamma of the very first step."""
_EARLY_STEPS = 50
"""During its first steps the controller chooses anew in every step."""
_HOLD_STEPS = 4
"""After that it keeps a choice for this many steps."""
_STALE_STEPS = 3
"""After more steps without a draft than this, the drafter has a backlog to read: its next draft takes longer."""


class CostAwareGammaConfig(PluginConfig):
    """Learns the gamma with the most tokens per second, 0 included.

    The range of gamma, and how its value is learned.
    """

    max_gamma: Annotated[int, Field(ge=1, le=64, strict=True)] = 8
    """The largest gamma."""
    decay_steps: Annotated[float, Field(ge=10, allow_inf_nan=False)] = 250
    """Number of steps after which an observation weighs 1 / e of a new one."""
    exploration: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Share of the time to spend on other gammas, to find out when they pay."""
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None = None
    """Times of steps with 0, 1, ... `max_gamma` draft tokens, in any unit, instead of measured ones."""

    @model_validator(mode="after")
    def _check_seconds(self) -> CostAwareGammaConfig:
        if self.seconds is not None and len(self.seconds) != self.max_gamma + 1:
            raise ValueError(
                f"seconds must have max_gamma + 1 = {self.max_gamma + 1} numbers, for 0, 1, ... {self.max_gamma} "
                f"draft tokens; got {len(self.seconds)}"
            )
        return self


class CostAwareGamma(GammaController):
    """Asks for the gamma that maximizes expected tokens per step over expected seconds per step, 0 included.

    Both are estimated from past steps: tokens from the acceptance at each position of the draft, seconds
    from step times. The estimates stay with the controller from batch to batch; times are kept per batch size.

    All sequences of a batch get the same gamma. They share a target forward pass whose time depends on the longest
    draft, so a shorter draft for one sequence saves nothing: what counts is the sum of their tokens over the time
    of the step.

    From time to time it tries another gamma than the best one, if that may turn out better or if nothing else was
    tried for long. The cost of these trials is kept below the share `exploration` of the time.

    Choices depend on measured time: text has exactly the target's distribution, but at a temperature above 0 the
    same seed may give different tokens. With `seconds` given, choices depend on the text alone.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192, with acceptance by position and a measured T(k).
    """

    varies = True

    def __init__(self, config: CostAwareGammaConfig) -> None:
        super().__init__(config)
        self._acceptance = AcceptanceByPosition(config.max_gamma, config.decay_steps)
        self._by_batch_size: dict[int, CostEstimates] = {}

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        size = batch.batch_size
        if size not in self._by_batch_size:
            self._by_batch_size[size] = CostEstimates(self.config)
        return _CostAwareSession(self.config, self._acceptance, self._by_batch_size[size], size)


class _CostAwareSession(GammaSession):
    def __init__(
        self, config: CostAwareGammaConfig, acceptance: AcceptanceByPosition, costs: CostEstimates, batch_size: int
    ) -> None:
        self._exploration, self._max_gamma = config.exploration, config.max_gamma
        self._acceptance = acceptance
        self._costs = costs
        self._batch_size = batch_size
        self._gamma = 0
        self._begun = False
        self._missed = _STALE_STEPS + 1  # steps since the drafter was last asked
        self._held = 0  # further steps for which the choice stays
        self._worth: float | None = None  # of a trial: the time its tokens would have taken with the best gamma

    def plan(self) -> Sequence[int]:
        if self._held:
            self._held -= 1
        else:
            self._gamma = self._choose()
        return (self._gamma,) * self._batch_size

    def _choose(self) -> int:
        """Return the best gamma, or another one that is worth trying."""
        costs = self._costs
        self._worth = None
        if not costs.known:
            # The prefill step shows how many tokens are accepted, the next one the time of a step without a draft.
            return 0 if self._begun else min(_FIRST_GAMMA, self._max_gamma)
        tokens, optimistic_tokens = self._acceptance.tokens(), self._acceptance.tokens(1.0)
        expected, optimistic = costs.expected()
        choices = range(min(self._max_gamma, 2 * costs.longest + 2) + 1)  # extrapolate only so far
        best = max(choices, key=lambda gamma: tokens[gamma] / expected[gamma])
        rate = tokens[best] / expected[best]
        if not self._begun:
            return best  # the prefill step is not timed
        hold = 0 if costs.steps < _EARLY_STEPS else _HOLD_STEPS - 1
        costs.budget = min(costs.budget + self._exploration * expected[best] * (1 + hold), 1.0)
        full = costs.budget == 1 and self._exploration > 0
        potential = [optimistic_tokens[gamma] / optimistic[gamma] for gamma in choices]
        potential[best] = 0.0
        trial = max(choices, key=potential.__getitem__)
        stale = self._missed > _STALE_STEPS and trial > 0
        price = (expected[trial] - tokens[trial] / rate) * (2 if stale else 1)
        if not (full or (potential[trial] > rate and price <= costs.budget)):
            self._held = hold
            return best
        # A drafter with a backlog takes longer once; only the step after that shows its usual time.
        self._held = int(stale)
        self._worth = tokens[trial] / rate
        return trial

    def observe(self, report: StepReport) -> None:
        gamma, longest, asked = self._gamma, max(report.outcome.drafted), any(report.asked)
        self._acceptance.pass_step()
        self._costs.pass_step(gamma, longest)
        if gamma:
            for accepted, committed in zip(report.outcome.accepted, report.outcome.committed, strict=True):
                self._acceptance.learn(gamma, accepted, len(committed))
        if report.step and isfinite(report.step_seconds) and report.step_seconds > 0:
            self._learn_time(report, 1 + longest if asked else 0)
        self._missed = 0 if asked else self._missed + 1
        self._begun = True

    def _learn_time(self, report: StepReport, kind: int) -> None:
        costs = self._costs
        if kind and self._missed > _STALE_STEPS:
            cost = costs.in_plain_steps(report.step_seconds)
        else:
            cost = costs.learn(kind, report.step_seconds, report.draft_seconds)
        if self._worth is not None:
            costs.budget -= max(0.0, cost - self._worth)


_PRIOR_RATE = 0.7
"""Assumed acceptance rate of the first position, with the weight of one observation."""
_LARGE = 1e12
_OUTLIER = 3.0
"""Slower steps are clipped at this many deviations; steps faster by more than that replace the estimate."""
_MAX_SURPRISE = 1.2
"""The first step of a length is believed up to this many times its expected time."""
_PRIOR_TOKEN_COST = 0.1
"""Assumed cost of a draft token before any was drafted, in steps without a draft."""
_LEAST = 1e-9
"""The weight of a time that was measured long ago."""


class AcceptanceByPosition:
    """Counts how often each position of a draft was drafted and accepted, given that all before it were.

    No independence is assumed: each position has its own rate. A draft shorter than asked for counts as rejected
    after its end, so h_i is the rate one gets when asking for i tokens,

        h_i = P(position i drafted and accepted | gamma >= i, position i - 1 accepted),

    and a step with gamma produces 1 + sum_{i <= gamma} prod_{j <= i} h_j tokens. Pooled over a batch,
    prod_{j <= i} h_j is exactly the share of sequences that accept i tokens, however different the sequences are.

    Args:
        max_gamma: The longest draft.
        decay_steps: Number of steps after which an observation weighs 1 / e of a new one.

    References:
        Equation (1) of arXiv 2211.17192, by position.
    """

    def __init__(self, max_gamma: int, decay_steps: float) -> None:
        # A growing weight of new observations has the effect of decaying all old ones without touching them.
        self._weight = 1.0
        self._growth = 1 + 1 / decay_steps
        self._tried = [0.0] * max_gamma
        self._accepted = [0.0] * max_gamma

    def pass_step(self) -> None:
        """Advance by a step, with or without a draft."""
        self._weight *= self._growth
        if self._weight > _LARGE:
            self._tried = [count / self._weight for count in self._tried]
            self._accepted = [count / self._weight for count in self._accepted]
            self._weight = 1.0

    def learn(self, gamma: int, accepted: int, committed: int) -> None:
        """Record the outcome of a sequence that was asked for `gamma` tokens, unless it was finished."""
        weight = self._weight
        accepted = min(accepted, gamma)
        for position in range(accepted):
            self._tried[position] += weight
            self._accepted[position] += weight
        # The next position was rejected or not drafted, unless the sequence ended before it.
        if accepted < gamma and committed > accepted:
            self._tried[accepted] += weight

    def tokens(self, extra: float = 0.0) -> list[float]:
        """Return the expected tokens of a sequence per step, for gamma = 0, 1, ... max_gamma.

        Args:
            extra: Successes added to every position, with as many trials: an optimistic estimate.
        """
        rate, survivors = _PRIOR_RATE, [1.0]
        scale = 1 / self._weight
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            # The prior of a position is the rate of the position before it.
            rate = (accepted * scale + rate + extra) / (tried * scale + 1 + extra)
            survivors.append(survivors[-1] * rate)
        return list(accumulate(survivors))


class CostEstimates:
    """Estimates the time of a step by the length k of its longest draft, in units of a step without a draft.

    A step's time is (how busy the machine is) x (the cost of its draft). The first factor is common to all lengths
    and follows every step; the second one decides the choice and moves slowly. So if the machine slows down, the
    length in use does not look expensive.

    Steps are numbered by kind: 0 without a draft, 1 when the drafter was asked and had nothing, 1 + k with k draft
    tokens.

    Args:
        config: The settings; with `seconds`, nothing is measured.
    """

    def __init__(self, config: CostAwareGammaConfig) -> None:
        max_gamma, given = config.max_gamma, config.seconds
        self._decay = 1 - 1 / config.decay_steps
        self.budget = min(1.0, 100 * config.exploration)
        """Time left for exploration, in steps without a draft; at most one is saved up."""
        self.steps = 0
        """Steps so far."""
        self._given = None if given is None else [seconds / given[0] for seconds in given]
        self._level = 0.0 if given is None else 1.0  # seconds of a step without a draft, at the current load
        self._cost = [1.0] * (max_gamma + 2)  # by kind: time of a step, in steps without a draft
        self._weight = [0.0] * (max_gamma + 2)  # by kind: number of observations, decayed up to ...
        self._seen = [0] * (max_gamma + 2)  # ... this step
        self._noise = 0.1  # relative deviation of single steps
        self._slope = 0.0  # the drafter's own time per token, in steps without a draft
        self._asked = [0.0] * (max_gamma + 1)  # by k: steps in which gamma was at least k ...
        self._reached = [0.0] * (max_gamma + 1)  # ... and in which the longest draft was as well
        self.longest = 0 if given is None else max_gamma
        """The longest draft that was timed."""

    @property
    def known(self) -> bool:
        """Whether a step without a draft was timed: the unit of all other times."""
        return self._level > 0

    def pass_step(self, gamma: int, longest: int) -> None:
        """Advance by a step; record the length of the longest draft when `gamma` tokens were asked for."""
        self.steps += 1
        for k in range(1, gamma + 1):
            self._asked[k] = self._asked[k] * self._decay + 1
            self._reached[k] = self._reached[k] * self._decay + (longest >= k)

    def in_plain_steps(self, seconds: float) -> float:
        """Return the cost of a step that is not learned from, in steps without a draft; at most 4."""
        return min(seconds / self._level, 4.0) if self.known and self._given is None else 1.0

    def learn(self, kind: int, seconds: float, draft_seconds: float) -> float:
        """Record the time of a step; return its cost in steps without a draft, outliers clipped."""
        if self._given is not None:
            return self._given[max(0, kind - 1)]
        if not self.known:
            if kind == 0:
                self._level, self._weight[0], self._seen[0] = seconds, 1.0, self.steps
            return 1.0
        weight = self._weight[kind] * self._decay ** (self.steps - self._seen[kind])
        self._seen[kind] = self.steps
        if not weight:
            return self._first_of(kind, seconds / self._level, draft_seconds / self._level)
        ratio = seconds / (self._level * self._cost[kind])
        width = _OUTLIER * self._noise
        self._noise += 0.05 * (1.25 * min(abs(ratio - 1), 1.0) - self._noise)
        ratio = min(ratio, 1 + width)
        if ratio < 1 - width:
            weight = 0.0  # other work only ever delays steps: the earlier ones were disturbed
        else:
            self._level *= 1 + 0.1 * (ratio - 1)
        self._weight[kind] = weight + 1
        self._cost[kind] *= 1 + (ratio - 1) / (weight + 1)
        return ratio * self._cost[kind]

    def _first_of(self, kind: int, cost: float, draft_cost: float) -> float:
        """Record the first step of a kind; clip it if it took much longer than expected."""
        k = max(0, kind - 1)
        believed = min(cost, _MAX_SURPRISE * self._interpolate(*self._known()[:2])[k])
        self._cost[kind], self._weight[kind] = believed, 1.0 if believed == cost else 0.5
        if k:
            self._slope = min(draft_cost, believed) / k
            self.longest = max(self.longest, k)
        return believed

    def expected(self) -> tuple[list[float], list[float]]:
        """Return the expected and the optimistic cost of a step for gamma = 0, 1, ... max_gamma."""
        if self._given is not None:
            costs = self._by_gamma(self._given, self._given[0])
            return costs, costs
        lengths, values, weights = self._known()
        low = [value / (1 + self._noise / sqrt(weight)) for value, weight in zip(values, weights, strict=True)]
        empty = self._cost[1] if self._weight[1] else values[0]
        expected = self._interpolate(lengths, values)
        return self._by_gamma(expected, empty), self._by_gamma(self._optimistic(lengths, low), empty)

    def _known(self) -> tuple[list[int], list[float], list[float]]:
        """Return the draft lengths that were timed, their non-decreasing costs, and their weights."""
        from scipy.optimize import isotonic_regression  # not at the top: settings are read without numpy

        kinds = [kind for kind, weight in enumerate(self._weight) if weight and kind != 1]
        age = [self.steps - self._seen[kind] for kind in kinds]
        weights = [max(self._weight[kind] * self._decay**n, _LEAST) for kind, n in zip(kinds, age, strict=True)]
        # That a longer draft takes less time than a shorter one is most likely noise. If it does take less, it is
        # still preferred at equal cost.
        return (
            [max(0, kind - 1) for kind in kinds],
            isotonic_regression([self._cost[kind] for kind in kinds], weights=weights).x.tolist(),
            weights,
        )

    def _interpolate(self, lengths: list[int], values: list[float]) -> tuple[float, ...]:
        """Return the cost of k = 0, 1, ... max_gamma draft tokens.

        A single step may be all that is known of a length, so beyond the longest the mean slope continues.
        """
        last = lengths[-1]
        slope = max(self._slope, (values[-1] - values[0]) / last) if last else _PRIOR_TOKEN_COST
        return interpolated(dict(zip(lengths, values, strict=True)), len(self._asked) - 1, slope)

    def _optimistic(self, lengths: list[int], values: list[float]) -> list[float]:
        """Return the least cost of k = 0, 1, ... max_gamma draft tokens: verifying more of them may be free."""
        costs: list[float] = []
        for low, high, left in zip(lengths, [*lengths[1:], len(self._asked)], values, strict=True):
            costs += [left + self._slope * n for n in range(high - low)]
        return costs

    def _by_gamma(self, costs: Sequence[float], empty: float) -> list[float]:
        """Return the expected cost for each gamma, given that drafts may come out shorter than gamma."""
        total = before = empty
        share, result = 1.0, [costs[0]]
        for k in range(1, len(costs)):
            share = min(share, (self._reached[k] + share) / (self._asked[k] + 1))
            total += share * (costs[k] - before)
            before = costs[k]
            result.append(total)
        return result
