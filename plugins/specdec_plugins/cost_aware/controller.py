"""The cost-aware controller: the gamma that gives most tokens a second on this machine, for this text; or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, GammaController, GammaSession
from specdec_plugins.configs import CostAwareGammaConfig
from specdec_plugins.cost_aware.acceptance import AcceptanceByPosition
from specdec_plugins.cost_aware.seconds import StepSeconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdec_core.border import StepReport

_FIRST = 2
"""Gamma of the very first step, when nothing is known."""
_EARLY = 50
"""Steps of a controller in each of which it chooses anew."""
_HOLD = 4
"""Steps for which it keeps to a choice after that."""
_STALE = 3
"""Steps without a draft after which the drafter has much to read, and its next draft takes longer than others."""


class CostAwareGamma(GammaController):
    """Asks for the gamma with most expected tokens of a step over its expected seconds, zero included.

    Both are estimated from the steps so far: tokens from the acceptance at each position of the draft, seconds
    from what steps took. What was learnt stays with the controller, from batch to batch; seconds are kept by
    batch size.

    All rows of a batch get the same gamma. They share a target call whose time follows the longest draft: to
    draft less in one row saves nothing, so the sum of the rows' tokens over the seconds of the step is what
    counts.

    Now and then it drafts otherwise than seems best, where that could turn out better, or where nothing else was
    tried for long. What that costs is kept below the share `probing` of the time.

    Choices follow the clock: the text is distributed exactly as the target's, but at a temperature above 0 the
    same seed need not give the same tokens. With `seconds` given, choices follow from the text alone.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192, with acceptance by position and T(k) as it is.
    """

    Config = CostAwareGammaConfig

    def __init__(self, config: CostAwareGammaConfig) -> None:
        super().__init__(config)
        self._acceptance = AcceptanceByPosition(config.most, config.memory)
        self._machines: dict[int, _Machine] = {}

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return int(self.config.most)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        size = batch.batch_size
        if size not in self._machines:
            config = self.config
            self._machines[size] = _Machine(
                StepSeconds(config.most, config.memory, config.seconds), config.probing
            )
        return _CostAwareSession(self._acceptance, self._machines[size], size, self.max_gamma)


@dataclass
class _Machine:
    """What is known of batches of one size.

    Attributes:
        seconds: What steps take.
        share: The share of the time that may go into probing.
        purse: What may still be spent on it, in plain steps; never more than one is saved up.
    """

    seconds: StepSeconds
    share: float
    purse: float = field(init=False)

    def __post_init__(self) -> None:
        self.purse = min(1.0, 100 * self.share)


class _CostAwareSession(GammaSession):
    def __init__(self, acceptance: AcceptanceByPosition, machine: _Machine, rows: int, most: int) -> None:
        self._acceptance = acceptance
        self._machine = machine
        self._rows = rows
        self._most = most
        self._gamma = 0
        self._begun = False
        self._missed = _STALE + 1  # steps since the drafter was last asked
        self._held = 0  # further steps in which the choice stays as it is
        self._worth: float | None = None  # of a probe: the plain steps its tokens would have taken otherwise

    def gamma(self) -> Sequence[int]:
        if self._held:
            self._held -= 1
        else:
            self._gamma = self._choose()
        return (self._gamma,) * self._rows

    def _choose(self) -> int:
        """Return the best gamma, or one that is worth a try."""
        seconds = self._machine.seconds
        self._worth = None
        if not seconds.known:
            # The step of the prompt shows what is accepted, the next one what plain decoding takes.
            return 0 if self._begun else min(_FIRST, self._most)
        tokens, hoped = self._acceptance.tokens(), self._acceptance.tokens(1.0)
        costs, least = seconds.expected()
        choices = range(min(self._most, 2 * seconds.longest + 2) + 1)  # no leap into the dark
        best = max(choices, key=lambda gamma: tokens[gamma] / costs[gamma])
        rate = tokens[best] / costs[best]
        if not self._begun:
            return best  # of a step with a prompt the time says nothing
        hold = 0 if seconds.steps < _EARLY else _HOLD - 1
        full = self._earn(costs[best] * (1 + hold))
        hopes = [hoped[gamma] / least[gamma] for gamma in choices]
        hopes[best] = 0.0
        probe = max(choices, key=hopes.__getitem__)
        stale = self._missed > _STALE and probe > 0
        price = (costs[probe] - tokens[probe] / rate) * (2 if stale else 1)
        if not (full or (hopes[probe] > rate and price <= self._machine.purse)):
            self._held = hold
            return best
        # A drafter that has much to read first takes longer, once; the step after that shows what it takes.
        self._held = int(stale)
        self._worth = tokens[probe] / rate
        return probe

    def _earn(self, cost: float) -> bool:
        """Put a share of a step's time into the purse; return whether it is full."""
        machine = self._machine
        machine.purse = min(machine.purse + machine.share * cost, 1.0)
        return machine.purse == 1 and machine.share > 0

    def observe(self, report: StepReport) -> None:
        gamma, longest, asked = self._gamma, max(report.drafted), any(report.asked)
        self._acceptance.pass_step()
        self._machine.seconds.pass_step(gamma, longest)
        if gamma:
            for accepted, committed in zip(report.accepted, report.committed, strict=True):
                self._acceptance.learn(gamma, accepted, len(committed))
        if report.step and isfinite(report.step_seconds) and report.step_seconds > 0:
            self._learn_seconds(report, 1 + longest if asked else 0)
        self._missed = 0 if asked else self._missed + 1
        self._begun = True

    def _learn_seconds(self, report: StepReport, kind: int) -> None:
        machine = self._machine
        if kind and self._missed > _STALE:
            cost = machine.seconds.in_plain_steps(report.step_seconds)
        else:
            cost = machine.seconds.learn(kind, report.step_seconds, report.draft_seconds)
        if self._worth is not None:
            machine.purse -= max(0.0, cost - self._worth)
