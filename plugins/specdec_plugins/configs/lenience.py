"""What a study may say about controllers of lenience. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.border import LenienceConfig


class ConstantLenienceConfig(LenienceConfig):
    """How strictly to judge, always."""

    lenience: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The factor l that q is multiplied with before the comparison; 1 is lossless."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1."""
        return self.lenience == 1
