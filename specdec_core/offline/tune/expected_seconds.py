"""Expected seconds of candidates over some texts of a record: each drafter is asked once, whatever its gammas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.costs import Machine
from specdec_core.interface import Drafter
from specdec_core.interface.errors import SpecdecError
from specdec_core.offline.replay import DrafterReplay
from specdec_core.offline.replay.runs import Asked, Drafted, How, Replayer
from specdec_core.study.config.study import drafter_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_core.interface import Progress
    from specdec_core.study import Run


@dataclass
class _Drafter:
    """A drafter with all candidates that use it.

    Attributes:
        run: One of them.
        how: How each is decoded, by its name.
        loaded: The drafter, once it has been loaded.
    """

    run: Run
    how: dict[str, How] = field(default_factory=dict)
    loaded: Drafter | None = None


class ExpectedSeconds:
    """Replays candidates on texts of a part of a record; see `specdec_core.offline.tune.race.Seconds`.

    Args:
        replayer: Replays them.
        runs: The candidates.
        machine: The seconds of steps.
        progress: Where progress is reported.
    """

    def __init__(self, replayer: Replayer, runs: Sequence[Run], machine: Machine, progress: Progress) -> None:
        self._replayer, self._machine, self._progress = replayer, machine, progress
        self._drafters: dict[str, _Drafter] = {}
        self._refused: dict[str, str] = {}
        for run in runs:
            self._add(run)

    def __call__(self, names: Sequence[str], texts: Sequence[int]) -> Mapping[str, NDArray[np.float64] | str]:
        """Return the seconds of each candidate in each text; or why it cannot be replayed."""
        ascending = sorted(texts)
        ranks = np.argsort(np.argsort(texts))  # of each text among the sorted ones
        found: dict[str, NDArray[np.float64] | str] = dict(self._refused)
        done = 0
        asked = [
            (drafter, wanted, self._asked(drafter, wanted, ascending))
            for drafter in self._drafters.values()
            if (wanted := [name for name in drafter.how if name in names])
        ]
        for drafter, wanted, replay in asked:
            self._progress.advance(done, wanted[0])
            found |= self._of_drafter(drafter, wanted, replay)
            done += len(wanted)
        return {
            name: value if isinstance(value, str) else value[ranks]
            for name, value in found.items()
            if name in names
        }

    def _add(self, run: Run) -> None:
        key = drafter_key(run.drafter, run.draft_sampling)
        try:
            how = self._replayer.how(run)
            self._machine.costs(key)
        except SpecdecError as error:
            self._refused[run.name] = str(error)
            return
        self._drafters.setdefault(key, _Drafter(run)).how[run.name] = how

    def _asked(self, drafter: _Drafter, names: Sequence[str], texts: Sequence[int]) -> Callable[[], Asked]:
        """Return a function that loads a drafter; with workers, they ask it from now on."""
        longest = max(1, *(drafter.how[name][0].max_gamma for name in names))
        return self._replayer.start(drafter.run, longest, texts, drafter.loaded)

    def _of_drafter(
        self, drafter: _Drafter, names: Sequence[str], asked: Callable[[], Asked]
    ) -> dict[str, NDArray[np.float64] | str]:
        greedy = self._replayer.part.header.sampling.greedy
        try:
            replay = asked()
            if isinstance(replay, DrafterReplay):
                drafter.loaded = replay.drafter
            drafted = Drafted(replay, greedy=greedy)
        except SpecdecError as error:
            return dict.fromkeys(names, str(error))
        return {name: self._seconds(drafted, drafter, name) for name in names}

    def _seconds(self, drafted: Drafted, drafter: _Drafter, name: str) -> NDArray[np.float64] | str:
        costs = self._machine.costs(drafter_key(drafter.run.drafter, drafter.run.draft_sampling))
        try:
            seconds = drafted.expected(*drafter.how[name], costs).seconds_by_text
        except SpecdecError as error:
            return str(error)
        assert seconds is not None, "there are costs"
        return seconds / self._machine.batch_size  # which share each step
