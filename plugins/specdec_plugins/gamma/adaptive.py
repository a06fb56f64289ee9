"""The running-average and the additive gamma controller: gamma of each sequence follows what was accepted."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from specdec_core.interface import BatchInfo, GammaController, GammaSession, StepReport
from specdec_core.theory.speed import walltime_improvement
from specdec_plugins.gamma.settings import AdaptiveGammaConfig, Cost, Count, Decay


class RunningAverageGammaConfig(AdaptiveGammaConfig):
    """Follows the recent acceptance rate to the best gamma by theory.

    How fast gamma follows the moving average of beta, and its bounds.
    """

    step_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8.0
    """Step size of the gradient ascent: tokens that gamma moves for a slope of 1 of the improvement."""
    decay: Decay = 0.95
    """Decay of the moving average per step; it averages over about 1 / (1 - decay) steps."""
    c: Cost | None = 0.05
    """Cost coefficient c: the time of a draft token over that of a target forward pass. `null` measures it while
    decoding; then the same seed may give different tokens."""


class RunningAverageGamma(GammaController):
    """Estimates alpha of each sequence with a moving average and moves its gamma by gradient ascent.

    After each step, gamma moves by `step_size` times the slope of the expected improvement (Theorem 3.8) at the
    current gamma and the estimated alpha. The improvement has a single peak, so gamma converges to it from any
    start. Gamma is a real number and is rounded when tokens are asked for.

    With `c: null` the cost coefficient depends on measured time: sampled text still has the target's distribution,
    but the same seed may give different tokens.

    References:
        Section 3.5 of arXiv 2211.17192 suggests predicting beta and varying gamma accordingly. The method is that
        of the project "Fast Inference from Transformers via Speculative Decoding" (team 28, slides "Speculative
        decoding with adaptive gamma").
    """

    def __init__(self, config: RunningAverageGammaConfig) -> None:
        super().__init__(config)
        self.varies = config.c is None

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch; every sequence starts with `initial_gamma`."""
        return _RunningAverageGammaSession(self.config, batch.batch_size)


class _RunningAverageGammaSession(GammaSession):
    """One batch.

    beta of a step is not observed, only the outcome of the verified tokens. Averaging accepted / verified per step
    would weight a step that ended at its first token like one of eight tokens, and underestimate alpha. So both
    counts are averaged with the same weights, and alpha is their quotient. They start with one token accepted and
    one rejected, which fades quickly and keeps alpha off 0 and 1 after a single step.
    """

    def __init__(self, config: RunningAverageGammaConfig, batch_size: int) -> None:
        self._config = config
        self._gammas = [float(config.initial_gamma)] * batch_size
        self._accepted = [1.0] * batch_size
        self._verified = [2.0] * batch_size
        self._clock = None if config.c is not None else _Clock(config.decay)

    def plan(self) -> Sequence[int]:
        return [int(gamma + 0.5) for gamma in self._gammas]

    def observe(self, report: StepReport) -> None:
        c = self._config.c
        if self._clock is not None:
            c = self._clock.observe(report)
        for row, (verified, accepted) in enumerate(zip(report.verified, report.outcome.accepted, strict=True)):
            # Without a verified token (no room, no draft, or the sequence is finished) there is nothing to learn.
            if verified:
                self._learn(row, verified, accepted, c)

    def _learn(self, row: int, verified: int, accepted: int, c: float | None) -> None:
        config = self._config
        self._accepted[row] = config.decay * self._accepted[row] + accepted
        self._verified[row] = config.decay * self._verified[row] + verified
        if c is not None:
            alpha, gamma = self._accepted[row] / self._verified[row], self._gammas[row]
            moved = gamma + config.step_size * improvement_slope(alpha, gamma, c)
            self._gammas[row] = min(max(moved, config.min_gamma), config.max_gamma)


class _Clock:
    """Measures c: the average seconds to draft a token divided by the average seconds of a target forward pass."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._draft_seconds = self._draft_calls = self._verify_seconds = self._verify_calls = 0.0

    def observe(self, report: StepReport) -> float | None:
        """Record a step; return c, or None while it is unknown."""
        # The first step includes the prefill of target and drafter, which later steps do not pay.
        if report.step > 0 and report.draft_calls:
            decay = self._decay
            self._draft_seconds = decay * self._draft_seconds + report.draft_seconds
            self._draft_calls = decay * self._draft_calls + report.draft_calls
            self._verify_seconds = decay * self._verify_seconds + report.verify_seconds
            self._verify_calls = decay * self._verify_calls + 1
        if not self._verify_seconds:
            return None
        return self._draft_seconds / self._draft_calls / (self._verify_seconds / self._verify_calls)


def improvement_slope(alpha: float, gamma: float, c: float) -> float:
    """Return the derivative with respect to gamma of the improvement S = E / (gamma c + 1) of Theorem 3.8.

    With E = (1 - alpha^(gamma+1)) / (1 - alpha), the expected tokens per step, and
    E' = -alpha^(gamma+1) ln(alpha) / (1 - alpha):

        S' = (E' - c S) / (gamma c + 1)

    One more draft token adds E' tokens and takes the time c, in which S tokens would otherwise be produced. S'
    changes sign at most once, from positive to negative: its sign is that of
    alpha^(gamma+1) (c - (gamma c + 1) ln(alpha)) - c, whose derivative
    -alpha^(gamma+1) ln(alpha)^2 (gamma c + 1) is negative.

    Args:
        alpha: Expected acceptance rate, in [0, 1]; at 0 and 1 the limits E' = 0 and E' = 1 are used.
        gamma: Draft tokens per step, a real number, at least 0.
        c: Cost coefficient, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Theorem 3.8, section 3.3 of arXiv 2211.17192.
    """
    improvement = walltime_improvement(alpha, gamma, c)
    if alpha in (0, 1):
        growth = float(alpha)
    else:
        # As in `expected_tokens`: keeps the quotient accurate for alpha near 1.
        log_alpha = math.log1p(alpha - 1) if alpha > 0.5 else math.log(alpha)
        growth = math.exp((gamma + 1) * log_alpha) * log_alpha / (alpha - 1)
    return (growth - c * improvement) / (gamma * c + 1)


class AdditiveGammaConfig(AdaptiveGammaConfig):
    """Raises gamma after a fully accepted draft, lowers it after a rejection.

    How much gamma grows and shrinks, and its bounds.
    """

    max_gamma: Count = 20
    """The largest gamma."""
    increase: Count = 2
    """Added to gamma when all gamma draft tokens were accepted."""
    decrease: Count = 1
    """Subtracted from gamma when a draft token was rejected."""


class AdditiveGamma(GammaController):
    """Adds `increase` to gamma when a sequence's whole draft was accepted, subtracts `decrease` on a rejection.

    A draft that was accepted whole but had fewer than gamma tokens, because the sequence or the drafter ran out,
    does not show whether gamma is too small or too large: gamma stays.

    References:
        Assisted generation in the Hugging Face library uses this heuristic, with 2 and 1; there, a shorter draft
        that was accepted whole counts like one of gamma tokens.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch; every sequence starts with `initial_gamma`."""
        return _AdditiveGammaSession(self.config, batch.batch_size)


class _AdditiveGammaSession(GammaSession):
    def __init__(self, config: AdditiveGammaConfig, batch_size: int) -> None:
        self._config = config
        self._gammas = [config.initial_gamma] * batch_size

    def plan(self) -> Sequence[int]:
        return self._gammas

    def observe(self, report: StepReport) -> None:
        config, gammas = self._config, self._gammas
        for row, (verified, accepted) in enumerate(zip(report.verified, report.outcome.accepted, strict=True)):
            if accepted < verified:
                gammas[row] = max(gammas[row] - config.decrease, config.min_gamma)
            elif accepted == gammas[row]:
                gammas[row] = min(gammas[row] + config.increase, config.max_gamma)
