"""Settings shared by gamma controllers. Importing this imports no torch."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specdec_core.interface import PluginConfig
from specdec_core.interface.controllers import MAX_GAMMA

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A cost coefficient c (Definition 3.7)."""

Count = Annotated[int, Field(ge=1, le=MAX_GAMMA, strict=True)]
"""A number of draft tokens, at least 1."""

Decay = Annotated[float, Field(ge=0, lt=1)]
"""The decay of an exponential moving average, per step."""


class AdaptiveGammaConfig(PluginConfig):
    """Start and bounds of an adaptive gamma. It never reaches 0: without a draft there is nothing to learn."""

    initial_gamma: Count = 5
    """Gamma of each sequence in its first step."""
    min_gamma: Count = 1
    """The smallest gamma."""
    max_gamma: Count = 16
    """The largest gamma."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.min_gamma, self.max_gamma
        if low > high:
            raise ValueError(f"min_gamma ({low}) must not exceed max_gamma ({high})")
        if not low <= self.initial_gamma <= high:
            raise ValueError(
                f"initial_gamma ({self.initial_gamma}) must lie between min_gamma ({low}) and max_gamma ({high})"
            )
        return self
