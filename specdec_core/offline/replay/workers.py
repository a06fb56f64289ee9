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
from specdec_core.offline.record.store import read_record
from specdec_core.offline.replay import DrafterReplay, TextAcceptance
from specdec_core.offline.replay.drafter_replay import BATCH_SIZE
from specdec_core.study.config.study import Run
from specdec_core.study.run.worker import worker

_JOBS_EACH = 2
"""Number of jobs for each worker: the last ones are short, and loading a drafter is shared by a whole job."""


class PooledReplay:
    """A drafter along some texts of a part, on the workers of a pool; it has started when this returns.

    Args:
        pool: The workers. The folder of the record must be the same one on all of them.
        asked: The drafter.
        chosen: Numbers of the texts, in ascending order.

    Attributes:
        notes: What a reader of the results should know; see `DrafterReplay`.
        device: Where the drafter was timed.
    """

    def __init__(self, pool: Pool, asked: PooledDrafter, chosen: Sequence[int]) -> None:
        self._pool, self._gpus = pool, min(1.0, float(pool.gpus))
        self._asked, self._chosen = asked, tuple(chosen)
        cpus = 1 if self._gpus else asked.threads  # the results may depend on the number of threads
        batches = -(-len(chosen) // BATCH_SIZE)
        each = -(-batches // (_JOBS_EACH * pool.workers(cpus, self._gpus))) * BATCH_SIZE
        jobs = [(asked, self._chosen[first : first + each]) for first in range(0, len(chosen), each)]
        self._found = pool.map(_acceptance, jobs, cpus=cpus, gpus=self._gpus)
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
        """Return the costs of steps; one worker times D(k) on a separate device. See `DrafterReplay.costs`."""
        most = timings * self._asked.max_gamma * batch_size
        some = self._chosen[:most], list(self.acceptance()[:most])
        job = (self._asked, *some, target, timings, batch_size)
        costs, self.device = self._pool.alone(_costs, *job, gpus=self._gpus)
        found: StepCosts = costs
        return found


@dataclass(frozen=True)
class PooledDrafter:
    """A drafter along a part of a record, as a job names it.

    Attributes:
        threads: Threads of the process that asks.
        record: The folder of the record.
        named: Models that the user names; see `Record`.
        part: Number of the part.
        run: The drafter and its sampling settings.
        max_gamma: The longest draft.
        folder: Base for relative paths in plugin settings.
    """

    threads: int
    record: Path
    named: frozenset[str]
    part: int
    run: Run
    max_gamma: int
    folder: Path

    def replay(self, chosen: tuple[int, ...], acceptance: Sequence[TextAcceptance] | None = None) -> DrafterReplay:
        """Return the drafter along some texts of the part; a worker keeps the last one that it loaded."""
        torch.set_num_threads(self.threads)
        record = replace(read_record(self.record), named=self.named)
        if _Loaded.last is None or _Loaded.last[0] != self:
            _Loaded.last = None  # frees memory before the next is loaded
            assert self.run.drafter is not None, "the baseline drafts nothing"
            _Loaded.last = (
                self,
                DrafterReplay(
                    record,
                    record.parts[self.part],
                    self.run.drafter,
                    max_gamma=self.max_gamma,
                    draft_sampling=self.run.draft_sampling,
                    registry=worker().registry,
                    folder=self.folder,
                ),
            )
        return _Loaded.last[1].for_texts(chosen, acceptance)


class _Loaded:
    """The objects that this worker has loaded."""

    last: tuple[PooledDrafter, DrafterReplay] | None = None


def _acceptance(asked: PooledDrafter, chosen: tuple[int, ...]) -> tuple[list[TextAcceptance], tuple[str, ...]]:
    replay = asked.replay(chosen)
    return list(replay.acceptance()), replay.notes


def _costs(
    asked: PooledDrafter,
    chosen: tuple[int, ...],
    acceptance: Sequence[TextAcceptance],
    target: StepCosts,
    timings: int,
    batch_size: int,
) -> tuple[StepCosts, str]:
    replay = asked.replay(chosen, acceptance)
    return replay.costs(target, timings, batch_size), replay.device
