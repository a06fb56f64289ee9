"""The constant and the greedy lenience controller: the same lenience in every step, or in greedy decoding only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import Field

from specdec_core.interface import BatchInfo, LenienceConfig, LenienceController, LenienceSession

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


class GreedyLenienceConfig(LenienceConfig):
    """Lenient in greedy decoding, lossless when tokens are sampled.

    The lenience of greedy decoding.
    """

    lenience: Lenience
    """l: a draft token is accepted if it is at least l times as probable as the most probable token; 1 is
    lossless."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1."""
        return self.lenience == 1

    def lossless_for(self, *, greedy: bool) -> bool:
        """Return whether l is 1: it always is where the target samples."""
        return self.lossless or not greedy


class GreedyLenience(LenienceController):
    """Accepts a draft token in greedy decoding if p(x) >= l max p, p before the argmax; l is 1 when sampling.

    l applies before standardization: it compares a token with the most probable one, not p with q. In logits it is
    a margin of log(1 / l) below the best. `constant` does the same in greedy decoding, but also multiplies q when
    tokens are sampled; this controller keeps sampling exact.

    References:
        Appendix A.5 of arXiv 2211.17192, which prints the inequality the other way round.
    """

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
        lenience = float(self.config.lenience) if batch.greedy else 1.0
        return ConstantLenienceSession(lenience, batch.batch_size)
