"""Expected seconds of candidates over some texts of a record: each drafter is asked once, whatever its gammas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specdec_core.costs import Machine
from specdec_core.decoding import make_gamma, make_lenience, make_rule
from specdec_core.interface import Drafter
from specdec_core.interface.errors import SpecdecError
from specdec_core.offline.record.format import Record, RecordPart, SomeTexts
from specdec_core.offline.replay import DrafterReplay, check_replayable, expected_metrics
from specdec_core.offline.replay.workers import PooledReplay
from specdec_core.study.config.study import drafter_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_core.cluster import Pool
    from specdec_core.interface import AcceptanceRule, GammaController, Progress
    from specdec_core.models import LoadedModel
    from specdec_core.offline.replay import TextAcceptance
    from specdec_core.registry import Registry
    from specdec_core.study import Run

_Asked: TypeAlias = "DrafterReplay | PooledReplay"
"""A drafter along some texts, here or on workers."""


@dataclass
class _Drafter:
    """A drafter with all candidates that use it.

    Attributes:
        run: One of them.
        gammas: The gamma controller of each, by its name.
        rules: The acceptance rule of each; None for Algorithm 1.
        loaded: The drafter, once it has been loaded.
    """

    run: Run
    gammas: dict[str, GammaController] = field(default_factory=dict)
    rules: dict[str, AcceptanceRule | None] = field(default_factory=dict)
    loaded: Drafter | None = None


class Replays:
    """Replays candidates on texts of a part of a record; see `specdec_core.offline.tune.race.Seconds`.

    Args:
        record: The record.
        part: The part.
        runs: The candidates.
        machine: The seconds of steps.
        target: The target, if it is loaded.
        folder: Base for relative paths in settings.
        registry: Where plugins come from.
        progress: Where progress is reported.
        plugin_timeout: Seconds that one call into a plugin may take; None for no limit.
        pool: Workers that ask the drafters; by default this process.
    """

    def __init__(
        self,
        record: Record,
        part: RecordPart,
        runs: Sequence[Run],
        machine: Machine,
        *,
        target: LoadedModel | None,
        folder: Path,
        registry: Registry,
        progress: Progress,
        plugin_timeout: float | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._pool = pool
        self._record, self._part, self._machine = record, part, machine
        self._target, self._folder, self._registry = target, folder, registry
        self._progress, self._timeout = progress, plugin_timeout
        self._drafters: dict[str, _Drafter] = {}
        self._refused: dict[str, str] = {}
        for run in runs:
            self._add(run)

    def __call__(self, names: Sequence[str], texts: Sequence[int]) -> Mapping[str, NDArray[np.float64] | str]:
        """Return the seconds of each candidate in each text; or why it cannot be replayed."""
        some = SomeTexts(self._part, tuple(sorted(texts)))
        places = np.argsort(np.argsort(texts))  # of each text among the sorted ones
        found: dict[str, NDArray[np.float64] | str] = dict(self._refused)
        done = 0
        asked = [
            (drafter, wanted, self._asked(drafter, wanted, some))
            for drafter in self._drafters.values()
            if (wanted := [name for name in drafter.gammas if name in names])
        ]
        for drafter, wanted, replay in asked:
            self._progress.advance(done, wanted[0])
            found |= self._of_drafter(drafter, wanted, replay)
            done += len(wanted)
        return {
            name: value if isinstance(value, str) else value[places]
            for name, value in found.items()
            if name in names
        }

    def _add(self, run: Run) -> None:
        try:
            greedy, lenience = self._part.header.sampling.greedy, make_lenience(run.lenience, self._registry)
            rule = make_rule(run.rule, self._registry, greedy=greedy, lenience=lenience)
            check_replayable(rule=rule, lenience=lenience, greedy=greedy)
            gamma = make_gamma(run.gamma, self._registry)
            assert gamma is not None, "the baseline is no candidate"
            self._machine.costs(drafter_key(run.drafter, run.draft_sampling))
        except SpecdecError as error:
            self._refused[run.name] = str(error)
            return
        key = drafter_key(run.drafter, run.draft_sampling)
        drafter = self._drafters.setdefault(key, _Drafter(run))
        drafter.gammas[run.name], drafter.rules[run.name] = gamma, rule

    def _asked(self, drafter: _Drafter, names: Sequence[str], texts: SomeTexts) -> Callable[[], _Asked]:
        """Return a function that loads a drafter; with workers, they ask it from now on."""
        assert drafter.run.drafter is not None, "the baseline is no candidate"
        longest = max(1, *(drafter.gammas[name].max_gamma for name in names))
        if self._pool is not None:
            pooled = PooledReplay(
                self._pool,
                self._record,
                self._part,
                drafter.run,
                max_gamma=longest,
                folder=self._folder.absolute(),
                plugin_timeout=self._timeout,
                texts=texts.chosen,
            )
            return lambda: pooled
        return partial(
            DrafterReplay,
            self._record,
            texts,
            drafter.loaded or drafter.run.drafter,
            max_gamma=longest,
            draft_sampling=drafter.run.draft_sampling,
            registry=self._registry,
            folder=self._folder,
            target=self._target,
            plugin_timeout=self._timeout,
        )

    def _of_drafter(
        self, drafter: _Drafter, names: Sequence[str], asked: Callable[[], _Asked]
    ) -> dict[str, NDArray[np.float64] | str]:
        try:
            replay = asked()
            if isinstance(replay, DrafterReplay):
                drafter.loaded = replay.drafter
            acceptance = replay.acceptance()
        except SpecdecError as error:
            return dict.fromkeys(names, str(error))
        return {name: self._seconds(acceptance, drafter, name) for name in names}

    def _seconds(
        self, acceptance: Sequence[TextAcceptance], drafter: _Drafter, name: str
    ) -> NDArray[np.float64] | str:
        try:
            replayed = expected_metrics(
                acceptance,
                drafter.gammas[name],
                rule=drafter.rules[name],
                greedy=self._part.header.sampling.greedy,
                costs=self._machine.costs(drafter_key(drafter.run.drafter, drafter.run.draft_sampling)),
            )
        except SpecdecError as error:
            return str(error)
        assert replayed.seconds_by_text is not None, "there are costs"
        return replayed.seconds_by_text / self._machine.batch_size  # which share each step
