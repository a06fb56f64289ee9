"""Settings of the quantized drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from specdec_core.interface import DrafterConfig


class QuantizedConfig(DrafterConfig):
    """A copy of the target with weights of 8 or 4 bits (self-speculation).

    How the target's weights are quantized for drafting.
    """

    needs_model: ClassVar[bool] = True

    bits: Literal[8, 4] = 8
    """Bits of a weight. The output embedding has 8 in either case."""
