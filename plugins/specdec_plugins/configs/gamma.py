"""What a study may say about controllers of gamma. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.border import PluginConfig


class FixedGammaConfig(PluginConfig):
    """How many tokens to draft, always."""

    gamma: Annotated[int, Field(ge=0, strict=True)] = 5
    """Tokens drafted in a step; 0 is plain decoding."""
