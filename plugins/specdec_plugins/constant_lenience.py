"""The constant lenience: the same factor l in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, LenienceController, LenienceSession
from specdec_plugins.configs import ConstantLenienceConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConstantLenience(LenienceController):
    """Multiplies q by the same `lenience` in every comparison, of every row.

    References:
        Appendix A.5 of arXiv 2211.17192.
    """

    Config = ConstantLenienceConfig

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Begin a batch."""
        return ConstantLenienceSession(float(self.config.lenience), batch.batch_size)


class ConstantLenienceSession(LenienceSession):
    """One batch, of rows that are all judged alike."""

    def __init__(self, lenience: float, batch_size: int) -> None:
        self._leniences = (lenience,) * batch_size

    def lenience(self) -> Sequence[float]:
        """Return l of each row."""
        return self._leniences
