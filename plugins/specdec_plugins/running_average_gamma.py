"""The running average: gamma climbs the wall-time equation for the acceptance that was met lately."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, GammaController, GammaSession, StepReport
from specdec_core.theory import walltime_improvement
from specdec_plugins.configs import RunningAverageGammaConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class RunningAverageGamma(GammaController):
    """Estimates alpha of each row by a running average, and moves its gamma by gradient ascent.

    After a step, gamma moves by `rate` times the slope of the expected improvement (Theorem 3.8) at this gamma and
    the alpha of the average. The improvement has one peak, so gamma goes there, wherever it began. It is a real
    number, and rounded when tokens are asked for.

    With `c: null` the cost coefficient follows the clock: sampled text has the target's distribution still, but
    the same seed need not give the same tokens.

    References:
        Section 3.5 of arXiv 2211.17192, which suggests to predict beta and to vary gamma accordingly; the method
        is that of the project "Fast Inference from Transformers via Speculative Decoding" (team 28, its slides
        "Speculative decoding with adaptive gamma").
    """

    Config = RunningAverageGammaConfig

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return int(self.config.most)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch; every row begins with `initial`."""
        return _RunningAverageGammaSession(self.config, batch.batch_size)


def improvement_slope(alpha: float, gamma: float, c: float) -> float:
    """Return the derivative by gamma of the improvement S = E / (gamma c + 1) of Theorem 3.8.

    With E = (1 - alpha^(gamma+1)) / (1 - alpha), the expected tokens, and E' = -alpha^(gamma+1) ln(alpha) / (1 -
    alpha):

        S' = (E' - c S) / (gamma c + 1)

    A further token brings E', and takes a time c in which S tokens would come otherwise. S' changes its sign once
    at most, from above to below: the sign is that of alpha^(gamma+1) (c - (gamma c + 1) ln(alpha)) - c, of which
    the derivative is -alpha^(gamma+1) ln(alpha)^2 (gamma c + 1) < 0.

    Args:
        alpha: Expected acceptance rate, in [0, 1]; at 0 and 1 the limits are returned, E' = 0 and E' = 1.
        gamma: Tokens drafted in a step, a real number of at least 0.
        c: Cost coefficient, at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Theorem 3.8, section 3.3 of arXiv 2211.17192.
    """
    improvement = walltime_improvement(alpha, gamma, c)
    if alpha in (0, 1):
        growth = float(alpha)
    else:
        # As in `expected_tokens`, so that the quotient stays right where alpha is near 1.
        log_alpha = math.log1p(alpha - 1) if alpha > 0.5 else math.log(alpha)
        growth = math.exp((gamma + 1) * log_alpha) * log_alpha / (alpha - 1)
    return (growth - c * improvement) / (gamma * c + 1)


class _RunningAverageGammaSession(GammaSession):
    """One batch.

    beta of a step is not seen, only what became of the tokens that were judged. A mean of accepted over judged,
    step by step, would count a step that ended at its first token as much as one of eight, and be too small. So
    both counts are averaged, with the same weights, and alpha is their quotient. They begin with one token
    accepted and one rejected, which is soon forgotten, so that alpha is neither 0 nor 1 after a single step.
    """

    def __init__(self, config: RunningAverageGammaConfig, batch_size: int) -> None:
        self._config = config
        self._gammas = [float(config.initial)] * batch_size
        self._accepted = [1.0] * batch_size
        self._judged = [2.0] * batch_size
        self._clock = None if config.c is not None else _Clock(config.memory)

    def gamma(self) -> Sequence[int]:
        return [int(gamma + 0.5) for gamma in self._gammas]

    def observe(self, report: StepReport) -> None:
        c = self._config.c
        if self._clock is not None:
            c = self._clock.observe(report)
        for row, (judged, accepted) in enumerate(zip(report.judged, report.accepted, strict=True)):
            # Where nothing was judged, nothing was learnt: without room, a guess, or anything left to say.
            if judged:
                self._learn(row, judged, accepted, c)

    def _learn(self, row: int, judged: int, accepted: int, c: float | None) -> None:
        config = self._config
        self._accepted[row] = config.memory * self._accepted[row] + accepted
        self._judged[row] = config.memory * self._judged[row] + judged
        if c is not None:
            alpha, gamma = self._accepted[row] / self._judged[row], self._gammas[row]
            moved = gamma + config.rate * improvement_slope(alpha, gamma, c)
            self._gammas[row] = min(max(moved, config.least), config.most)


class _Clock:
    """Measures c from the reports: seconds of drafting a token over those of a target call, both averaged."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._draft_seconds = self._draft_calls = self._verify_seconds = self._verify_calls = 0.0

    def observe(self, report: StepReport) -> float | None:
        """Take in a step; return c, or None while it is not known."""
        # The first target call reads the prompt, and so does the drafter's: neither is what a step costs.
        if report.step > 0 and report.draft_calls:
            memory = self._memory
            self._draft_seconds = memory * self._draft_seconds + report.draft_seconds
            self._draft_calls = memory * self._draft_calls + report.draft_calls
            self._verify_seconds = memory * self._verify_seconds + report.verify_seconds
            self._verify_calls = memory * self._verify_calls + 1
        if not self._verify_seconds:
            return None
        return self._draft_seconds / self._draft_calls / (self._verify_seconds / self._verify_calls)
