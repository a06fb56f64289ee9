"""The additive gamma: more after a draft that was accepted whole, less after one that was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, GammaController, GammaSession, StepReport
from specdec_plugins.configs import AdditiveGammaConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class AdditiveGamma(GammaController):
    """Adds `up` to a row's gamma when all its draft tokens were accepted, takes `down` away when one was rejected.

    A draft that was shorter than gamma, for want of room or of guesses, and accepted whole says neither that gamma
    is too small nor that it is too large: gamma stays.

    References:
        The Hugging Face library's assisted generation has this heuristic, with 2 and 1; there a draft that was cut
        short and accepted whole counts like one of gamma tokens.
    """

    Config = AdditiveGammaConfig

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return int(self.config.most)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch; every row begins with `initial`."""
        return _AdditiveGammaSession(self.config, batch.batch_size)


class _AdditiveGammaSession(GammaSession):
    def __init__(self, config: AdditiveGammaConfig, batch_size: int) -> None:
        self._config = config
        self._gammas = [config.initial] * batch_size

    def gamma(self) -> Sequence[int]:
        return self._gammas

    def observe(self, report: StepReport) -> None:
        config, gammas = self._config, self._gammas
        for row, (judged, accepted) in enumerate(zip(report.judged, report.accepted, strict=True)):
            if accepted < judged:
                gammas[row] = max(gammas[row] - config.down, config.least)
            elif accepted == gammas[row]:
                gammas[row] = min(gammas[row] + config.up, config.most)
