"""The schedule lenience controller: lenience as a function of the position in the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from specdec_core.interface import BatchInfo, LenienceConfig, LenienceController, LenienceSession, StepReport
from specdec_plugins.lenience.constant import Lenience


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
