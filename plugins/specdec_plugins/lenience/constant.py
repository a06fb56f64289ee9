"""The constant lenience controller: the same lenience in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from specdec_core.interface import BatchInfo, LenienceConfig, LenienceController, LenienceSession

if TYPE_CHECKING:
    from collections.abc import Sequence

Lenience: TypeAlias = Annotated[float, Field(gt=0, le=1)]
"""l of appendix A.5; 1 is lossless."""


class ConstantLenienceConfig(LenienceConfig):
    """The same lenience in every step; 1 is lossless.

    The lenience of every step.
    """

    lenience: Lenience = 1.0
    """The factor l on q in the acceptance test; 1 is lossless."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1."""
        return self.lenience == 1


class ConstantLenience(LenienceController):
    """Multiplies q by the same `lenience` in every acceptance test of every sequence.

    References:
        Appendix A.5 of arXiv 2211.17192.
    """

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
        return ConstantLenienceSession(float(self.config.lenience), batch.batch_size)


class ConstantLenienceSession(LenienceSession):
    """One batch with the same lenience for every sequence."""

    def __init__(self, lenience: float, batch_size: int) -> None:
        self._leniences = (lenience,) * batch_size

    def lenience(self) -> Sequence[float]:
        """Return l of each sequence."""
        return self._leniences
