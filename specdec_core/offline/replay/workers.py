"""Replaying drafters on the workers of a pool: each job takes a drafter along some texts of a record.

Texts are asked for together as one process asks for them, so that the results are the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdec_core.cluster import Pool
from specdec_core.costs import StepCosts
from specdec_core.offline.record import Record, RecordPart, read_record
from specdec_core.offline.record.format import SomeTexts
from specdec_core.offline.replay import DrafterReplay, TextAcceptance
from specdec_core.offline.replay.drafter import BATCH_SIZE
from specdec_core.study.config.study import Run
from specdec_core.study.run.worker import worker

_JOBS_EACH = 2
"""Number of jobs for each worker: the last ones are short, and loading a drafter is shared by a whole job."""


class PooledReplay:
    """A drafter along the texts of a part, on the workers of a pool; it has started when this returns.

    Args:
        pool: The workers. The folder of the record must be the same one on all of them.
        record: The record.
        part: One of its parts.
        run: Settings of the drafter.
        max_gamma: The longest draft.
        folder: Base for relative paths in plugin settings.
        plugin_timeout: Seconds that one call into the drafter may take.
        texts: Numbers of the texts, in ascending order; None for all of the part.

    Attributes:
        notes: What a reader of the results should know; see `DrafterReplay`.
        device: Where the drafter was timed.
    """

    def __init__(
        self,
        pool: Pool,
        record: Record,
        part: RecordPart,
        run: Run,
        *,
        max_gamma: int,
        folder: Path,
        plugin_timeout: float | None,
        texts: Sequence[int] | None = None,
    ) -> None:
        threads = torch.get_num_threads()
        self._pool, self._gpus = pool, min(1.0, float(pool.gpus))
        cpus = 1 if self._gpus else threads  # the results may depend on the number of threads
        where = (str(record.path.absolute()), record.named, record.parts.index(part))
        self._asked = _Asked(threads, *where, run, max_gamma, folder, plugin_timeout)
        chosen = tuple(range(len(part)) if texts is None else texts)
        batches = -(-len(chosen) // BATCH_SIZE)
        each = -(-batches // (_JOBS_EACH * pool.workers(cpus, self._gpus))) * BATCH_SIZE
        some = [chosen[first : first + each] for first in range(0, len(chosen), each)]
        self._found = pool.map(_acceptance, [(self._asked, one) for one in some], cpus=cpus, gpus=self._gpus)
        self._chosen = chosen
        self._acceptance: list[TextAcceptance] | None = None
        self.notes: tuple[str, ...] = ()
        self.device = ""

    def acceptance(self) -> Sequence[TextAcceptance]:
        """Return the acceptance along each text; see `DrafterReplay.acceptance`."""
        if self._acceptance is None:
            found = list(self._found)
            self.notes = tuple(dict.fromkeys(note for _, notes in found for note in notes))
            self._acceptance = [one for acceptance, _ in found for one in acceptance]
        return self._acceptance

    def costs(self, target: StepCosts, timings: int = 20, batch_size: int = 1) -> StepCosts:
        """Return the costs of steps; one worker times D(k) on a device of its own. See `DrafterReplay.costs`."""
        most = timings * self._asked.max_gamma * batch_size
        some = self._chosen[:most], list(self.acceptance()[:most])
        job = (self._asked, *some, target, timings, batch_size)
        ((costs, self.device),) = self._pool.map(_costs, [job], timed=True, gpus=self._gpus)
        found: StepCosts = costs
        return found


@dataclass(frozen=True)
class _Asked:
    """The request to a drafter.

    Attributes:
        threads: Threads of the process that asks.
        record: The folder of the record.
        named: Models that the user names; see `Record`.
        part: Number of the part.
        run: The drafter and its sampling settings.
        max_gamma: The longest draft.
        folder: Base for relative paths in plugin settings.
        plugin_timeout: Seconds that one call into the drafter may take.
    """

    threads: int
    record: str
    named: frozenset[str]
    part: int
    run: Run
    max_gamma: int
    folder: Path
    plugin_timeout: float | None

    def replay(self, chosen: tuple[int, ...], acceptance: Sequence[TextAcceptance] | None = None) -> DrafterReplay:
        """Return the drafter along some texts of the part; a worker keeps the last one that it loaded."""
        torch.set_num_threads(self.threads)
        part = read_record(self.record).parts[self.part]
        if _Loaded.last is None or _Loaded.last[0] != self:
            _Loaded.last = None  # frees memory before the next is loaded
            _Loaded.last = self, self._load(part)
        return _Loaded.last[1].for_texts(SomeTexts(part, chosen), acceptance)

    def _load(self, part: RecordPart) -> DrafterReplay:
        assert self.run.drafter is not None, "the baseline drafts nothing"
        return DrafterReplay(
            replace(read_record(self.record), named=self.named),
            part,
            self.run.drafter,
            max_gamma=self.max_gamma,
            draft_sampling=self.run.draft_sampling,
            registry=worker().registry,
            folder=self.folder,
            batch_size=BATCH_SIZE,
            plugin_timeout=self.plugin_timeout,
        )


class _Loaded:
    """The objects that this worker has loaded."""

    last: tuple[_Asked, DrafterReplay] | None = None


def _acceptance(asked: _Asked, chosen: tuple[int, ...]) -> tuple[list[TextAcceptance], tuple[str, ...]]:
    replay = asked.replay(chosen)
    return list(replay.acceptance()), replay.notes


def _costs(
    asked: _Asked,
    chosen: tuple[int, ...],
    acceptance: Sequence[TextAcceptance],
    target: StepCosts,
    timings: int,
    batch_size: int,
) -> tuple[StepCosts, str]:
    replay = asked.replay(chosen, acceptance)
    return replay.costs(target, timings, batch_size), replay.device
