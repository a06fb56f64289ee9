"""The cost-aware gamma controller: learns the gamma with the most tokens per second, which may be 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from specdec_core.interface import BatchInfo, GammaController, GammaSession, PluginConfig, StepReport
from specdec_plugins.gamma.cost_aware_estimates import AcceptanceByPosition, CostEstimates

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._by_batch_size: dict[int, _Costs] = {}

    @property
    def max_gamma(self) -> int:
        """The largest gamma it ever asks for."""
        return int(self.config.max_gamma)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        size = batch.batch_size
        if size not in self._by_batch_size:
            config = self.config
            times = CostEstimates(config.max_gamma, config.decay_steps, config.seconds)
            self._by_batch_size[size] = _Costs(times, config.exploration)
        return _CostAwareSession(self._acceptance, self._by_batch_size[size], size, self.max_gamma)


@dataclass
class _Costs:
    """The costs of steps at one batch size.

    Attributes:
        times: The estimated times of steps.
        exploration: Share of the time that may be spent on exploration.
        budget: Time left for exploration, in steps without a draft; at most one is saved up.
    """

    times: CostEstimates
    exploration: float
    budget: float = field(init=False)

    def __post_init__(self) -> None:
        self.budget = min(1.0, 100 * self.exploration)


class _CostAwareSession(GammaSession):
    def __init__(self, acceptance: AcceptanceByPosition, costs: _Costs, batch_size: int, max_gamma: int) -> None:
        self._acceptance = acceptance
        self._costs = costs
        self._batch_size = batch_size
        self._max_gamma = max_gamma
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
        times = self._costs.times
        self._worth = None
        if not times.known:
            # The prefill step shows how many tokens are accepted, the next one the time of a step without a draft.
            return 0 if self._begun else min(_FIRST_GAMMA, self._max_gamma)
        tokens, optimistic_tokens = self._acceptance.tokens(), self._acceptance.tokens(1.0)
        expected, optimistic = times.expected()
        choices = range(min(self._max_gamma, 2 * times.longest + 2) + 1)  # extrapolate only so far
        best = max(choices, key=lambda gamma: tokens[gamma] / expected[gamma])
        rate = tokens[best] / expected[best]
        if not self._begun:
            return best  # the prefill step is not timed
        hold = 0 if times.steps < _EARLY_STEPS else _HOLD_STEPS - 1
        full = self._earn(expected[best] * (1 + hold))
        potential = [optimistic_tokens[gamma] / optimistic[gamma] for gamma in choices]
        potential[best] = 0.0
        trial = max(choices, key=potential.__getitem__)
        stale = self._missed > _STALE_STEPS and trial > 0
        price = (expected[trial] - tokens[trial] / rate) * (2 if stale else 1)
        if not (full or (potential[trial] > rate and price <= self._costs.budget)):
            self._held = hold
            return best
        # A drafter with a backlog takes longer once; only the step after that shows its usual time.
        self._held = int(stale)
        self._worth = tokens[trial] / rate
        return trial

    def _earn(self, cost: float) -> bool:
        """Add a share of a step's time to the exploration budget; return whether the budget is full."""
        costs = self._costs
        costs.budget = min(costs.budget + costs.exploration * cost, 1.0)
        return costs.budget == 1 and costs.exploration > 0

    def observe(self, report: StepReport) -> None:
        gamma, longest, asked = self._gamma, max(report.outcome.drafted), any(report.asked)
        self._acceptance.pass_step()
        self._costs.times.pass_step(gamma, longest)
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
            cost = costs.times.in_plain_steps(report.step_seconds)
        else:
            cost = costs.times.learn(kind, report.step_seconds, report.draft_seconds)
        if self._worth is not None:
            costs.budget -= max(0.0, cost - self._worth)
