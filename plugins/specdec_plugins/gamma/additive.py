"""The additive gamma controller: raises gamma after a fully accepted draft, lowers it after a rejection."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.interface import BatchInfo, GammaController, GammaSession, StepReport
from specdec_plugins.gamma.settings import AdaptiveGammaConfig, Count


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
