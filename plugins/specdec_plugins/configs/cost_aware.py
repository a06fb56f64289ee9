"""What a study may say about the cost-aware controller. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specdec_core.border import PluginConfig


class CostAwareGammaConfig(PluginConfig):
    """Between which gammas to choose, and how to learn what they are worth."""

    most: Annotated[int, Field(ge=1, le=64, strict=True)] = 8
    """The largest gamma."""
    memory: Annotated[float, Field(ge=10, allow_inf_nan=False)] = 250
    """Steps after which what was seen weighs 1 / e of what is new."""
    probing: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    """Share of the time that may go into gammas that do not seem best."""
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None = None
    """What steps take with k = 0, 1, ... `most` draft tokens, in any unit: `step` in a file of `specdec measure`.
    Then no clock is looked at."""

    @model_validator(mode="after")
    def _check_seconds(self) -> CostAwareGammaConfig:
        if self.seconds is not None and len(self.seconds) != self.most + 1:
            raise ValueError(
                f"seconds must have most + 1 = {self.most + 1} numbers, for k = 0, 1, ... {self.most} draft "
                f"tokens; {len(self.seconds)} were given"
            )
        return self
