"""Settings of the random drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import ClassVar

from specdec_core.interface import DrafterConfig


class RandomConfig(DrafterConfig):
    """Every token with the same probability: the floor for all other drafters."""

    token_ids_only: ClassVar[bool] = True
