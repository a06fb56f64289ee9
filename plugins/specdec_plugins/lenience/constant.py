"""Controllers of a given lenience: in every step, in greedy decoding only, or by the position in the text."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from specdec_core.interface import BatchInfo, LenienceConfig, LenienceController, LenienceSession, StepReport

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


class ScheduleLenienceConfig(LenienceConfig):
    """Lenience as a function of the position in the text.

    The lenience at given positions of the text.
    """

    points: Annotated[tuple[tuple[Annotated[int, Field(ge=0)], Lenience], ...], Field(min_length=1)]
    """Pairs `[position, l]` with ascending positions; the first new token has position 0. l is constant before the
    first pair and after the last."""
    interpolation: Literal["linear", "step"] = "linear"
    """How l changes between two pairs: linearly, or in a step at the second one."""

    @field_validator("points")
    @classmethod
    def _check_ascending(cls, points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        for (position, _), (following, _) in pairwise(points):
            if following <= position:
                raise ValueError(f"positions must ascend, but {following} follows {position}; sort the pairs")
        return points

    @property
    def lossless(self) -> bool:
        """Whether l is 1 everywhere."""
        return all(lenience == 1 for _, lenience in self.points)


class ScheduleLenience(LenienceController):
    """Verifies each token with the lenience of its position among the sequence's new tokens.

    References:
        Appendix A.5 of arXiv 2211.17192; l may differ from token to token, and the bound holds for each.
    """

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
        return _ScheduleSession(self.config, batch)


class _ScheduleSession(LenienceSession):
    def __init__(self, config: ScheduleLenienceConfig, batch: BatchInfo) -> None:
        # l is constant after the last point, and no sequence grows beyond its room.
        self._last = min(config.points[-1][0], max(batch.room))
        self._table = tuple(lenience_at(config, position) for position in range(self._last + 1))
        self._width = max(batch.max_gamma, 1)
        self._written = [0] * batch.batch_size

    def lenience(self) -> Sequence[Sequence[float]]:
        positions = [min(written, self._last) for written in self._written]
        return [self._table[position : position + self._width] for position in positions]

    def observe(self, report: StepReport) -> None:
        for row, new in enumerate(report.outcome.committed):
            self._written[row] += len(new)


def lenience_at(config: ScheduleLenienceConfig, position: int) -> float:
    """Return l of the new token at a position, counted from 0."""
    positions = [point for point, _ in config.points]
    after = bisect_right(positions, position)
    if after == 0:
        return config.points[0][1]
    begin, lenience = config.points[after - 1]
    if after == len(positions) or config.interpolation == "step":
        return lenience
    end, following = config.points[after]
    return lenience + (following - lenience) * (position - begin) / (end - begin)
