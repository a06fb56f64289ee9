"""What a study may say about each controller. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.border import PluginConfig


class FixedGammaConfig(PluginConfig):
    """How many tokens to draft, always."""

    gamma: Annotated[int, Field(ge=0, strict=True)] = 5
    """Tokens drafted in a step; 0 is plain decoding."""


class ConstantLenienceConfig(PluginConfig):
    """How strictly to judge, always."""

    lenience: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The factor l that q is multiplied with before the comparison; 1 is lossless."""
