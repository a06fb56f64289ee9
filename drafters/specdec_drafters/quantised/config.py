"""Settings of the quantised drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Literal

from specdec_core.interface import PluginConfig


class QuantisedConfig(PluginConfig):
    """How the target's weights are quantised for drafting."""

    bits: Literal[8, 4] = 8
    """Bits of a weight. The output embedding has 8 in either case."""
