"""The fixed gamma: the same number of draft tokens in every step, as in the paper's experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, GammaController, GammaSession
from specdec_plugins.configs import FixedGammaConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class FixedGamma(GammaController):
    """Asks for `gamma` tokens in every step, of every row.

    References:
        Section 3.5 of arXiv 2211.17192 (choosing gamma; Figure 3 gives the best one for alpha and c).
    """

    Config = FixedGammaConfig

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return int(self.config.gamma)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        return FixedGammaSession(self.max_gamma, batch.batch_size)


class FixedGammaSession(GammaSession):
    """One batch, of rows that are all asked for the same."""

    def __init__(self, gamma: int, batch_size: int) -> None:
        self._gammas = (gamma,) * batch_size

    def gamma(self) -> Sequence[int]:
        """Return how many tokens each row should draft next."""
        return self._gammas
