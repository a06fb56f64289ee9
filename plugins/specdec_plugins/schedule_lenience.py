"""The scheduled lenience: l follows the place in the text."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, LenienceController, LenienceSession, StepReport
from specdec_plugins.configs import ScheduleLenienceConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScheduleLenience(LenienceController):
    """Judges each token by its place among the new tokens of its row, whichever step drafts it.

    References:
        Appendix A.5 of arXiv 2211.17192; l may differ from token to token, and each keeps its own bound.
    """

    Config = ScheduleLenienceConfig

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Begin a batch."""
        return _ScheduleSession(self.config, batch)


def lenience_at(config: ScheduleLenienceConfig, place: int) -> float:
    """Return l of the new token at a place, the first of which is 0."""
    places = [point for point, _ in config.points]
    behind = bisect_right(places, place)
    if behind == 0:
        return config.points[0][1]
    begin, lenience = config.points[behind - 1]
    if behind == len(places) or config.between == "step":
        return lenience
    end, following = config.points[behind]
    return lenience + (following - lenience) * (place - begin) / (end - begin)


class _ScheduleSession(LenienceSession):
    def __init__(self, config: ScheduleLenienceConfig, batch: BatchInfo) -> None:
        # Behind the last point nothing changes, and no row gets beyond its room.
        self._last = min(config.points[-1][0], max(batch.room))
        self._table = tuple(lenience_at(config, place) for place in range(self._last + 1))
        self._width = max(batch.max_gamma, 1)
        self._written = [0] * batch.batch_size

    def lenience(self) -> Sequence[Sequence[float]]:
        places = [min(written, self._last) for written in self._written]
        return [self._table[place : place + self._width] for place in places]

    def observe(self, report: StepReport) -> None:
        for row, new in enumerate(report.committed):
            self._written[row] += len(new)
