"""The optimal gamma: the one that maximises the wall-time improvement, computed before decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, GammaController, GammaSession
from specdec_core.theory import best_gamma, step_seconds
from specdec_plugins.configs import OptimalGammaConfig
from specdec_plugins.fixed_gamma import FixedGammaSession

if TYPE_CHECKING:
    from collections.abc import Sequence


class OptimalGamma(GammaController):
    """Asks in every step, of every row, for as many tokens as give most tokens a second; for none where none pay.

    From alpha and c this is Theorem 3.8, with T(k) where `verify` says it. From a measurement it is the same
    quotient without the assumptions of section 3.3: acceptance by position, and the seconds that whole steps took.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192.
    """

    Config = OptimalGammaConfig

    def __init__(self, config: OptimalGammaConfig) -> None:
        super().__init__(config)
        self._gamma = best_gamma(*_rates_and_seconds(config))

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return self._gamma

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        return FixedGammaSession(self._gamma, batch.batch_size)


def _rates_and_seconds(config: OptimalGammaConfig) -> tuple[Sequence[float], Sequence[float]]:
    """Return the acceptance by position, and what steps with drafts of 0, 1, ... `most` tokens take."""
    if config.measured is not None:
        return config.measured.rates, config.measured.seconds[: config.most + 1]
    assert config.alpha is not None  # as was validated
    assert config.c is not None
    return (config.alpha,), step_seconds(config.c, config.most, config.verify)
