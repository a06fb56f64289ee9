"""A drafter along the texts of a part, asked by jobs in this process or on the workers of a pool.

Texts are asked for together as one process asks for them, so that the results are the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from specdec_core.cluster import LocalPool, Pool
from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface import AcceptanceRule, GammaController
from specdec_core.offline.record.format import PartHeader, Record
from specdec_core.offline.record.store import read_record
from specdec_core.offline.replay.drafter_replay import BATCH_SIZE, DrafterReplay
from specdec_core.offline.replay.replayed_metrics import Replayed, TextAcceptance, expected_metrics
from specdec_core.study.config.study import Run
from specdec_core.study.run.worker import worker

_JOBS_EACH = 2
"""Number of jobs for each worker: the last ones are short, and loading a drafter is shared by a whole job."""
_TIMINGS = 20
"""Number of timings of each draft length."""


@dataclass(frozen=True)
class DrafterJob:
    """A drafter along a part of a record, as a job names it.

    Attributes:
        threads: Threads of the process that asks: the results may depend on their number.
        record: The folder of the record, the same on all workers.
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

    @classmethod
    def of(cls, record: Record, part: int, run: Run, max_gamma: int, folder: Path) -> Self:
        """Return the drafter of a run along a part of a record."""
        where = record.path.absolute(), record.named, part
        return cls(torch.get_num_threads(), *where, run, max_gamma, folder.absolute())

    def replay(self, texts: Sequence[int], acceptance: Sequence[TextAcceptance] | None = None) -> DrafterReplay:
        """Return the drafter along some texts of the part; a worker keeps the last one that it loaded."""
        torch.set_num_threads(self.threads)
        kept = worker().kept
        if self not in kept:
            kept.clear()  # frees memory before the next is loaded
            assert self.run.drafter is not None, "the baseline drafts nothing"
            record = replace(read_record(self.record), named=self.named)
            kept[self] = DrafterReplay(
                record,
                record.parts[self.part],
                self.run.drafter,
                max_gamma=self.max_gamma,
                draft_sampling=self.run.draft_sampling,
                registry=worker().registry,
                folder=self.folder,
                progress=worker().progress,
            )
        loaded: DrafterReplay = kept[self]
        return loaded.for_texts(texts, acceptance)


def _acceptance(job: DrafterJob, texts: Sequence[int]) -> tuple[list[TextAcceptance], tuple[str, ...]]:
    replay = job.replay(texts)
    return list(replay.acceptance()), replay.notes


def _costs(
    job: DrafterJob, texts: Sequence[int], acceptance: Sequence[TextAcceptance], target: StepCosts
) -> tuple[StepCosts, str]:
    replay = job.replay(texts, acceptance)
    return replay.costs(target, _TIMINGS), replay.device


class Drafted:
    """What a drafter drafts along the texts of a part: every gamma follows from that.

    Args:
        job: The drafter. Workers of a pool begin to ask it at once, and this process when it is needed.
        pool: The workers; None for this process.
        part: Settings of the texts.
        count: Number of the texts.

    Attributes:
        device: Where the drafter was timed.
    """

    def __init__(self, job: DrafterJob, pool: Pool | None, part: PartHeader, count: int) -> None:
        self._job, self._pool, self._part = job, pool or LocalPool(), part
        self._gpus = min(1.0, float(self._pool.gpus))
        cpus = 1 if self._gpus else job.threads
        jobs = 1 if pool is None else _JOBS_EACH * pool.workers(cpus, self._gpus)
        each = max(1, -(-count // (BATCH_SIZE * jobs))) * BATCH_SIZE
        some = [range(first, min(first + each, count)) for first in range(0, count, each)]
        self._found = self._pool.map(_acceptance, [(job, texts) for texts in some], cpus=cpus, gpus=self._gpus)
        self._speedups: dict[tuple[StepCosts, str | None], tuple[float, ...]] = {}
        self._costs: StepCosts | None = None
        self.device = ""

    @cached_property
    def _read(self) -> tuple[list[TextAcceptance], tuple[str, ...]]:
        """The acceptance along each text, and what a reader of the results should know."""
        found = list(self._found)
        notes = dict.fromkeys(note for _, notes in found for note in notes)
        return [one for acceptance, _ in found for one in acceptance], tuple(notes)

    @property
    def acceptance(self) -> Sequence[TextAcceptance]:
        """The acceptance along each text; see `DrafterReplay.acceptance`."""
        return self._read[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know; see `DrafterReplay`."""
        return self._read[1]

    def costs(self, target: StepCosts) -> StepCosts:
        """Return the costs of steps; D(k) is timed once, while no other job runs. See `DrafterReplay.costs`."""
        if self._costs is None:
            some = self.acceptance[: _TIMINGS * self._job.max_gamma]
            job = self._job, range(len(some)), some, target
            self._costs, self.device = self._pool.alone(_costs, *job, gpus=self._gpus)
        return self._costs

    def expected(
        self, gamma: int | GammaController, rule: AcceptanceRule | None, costs: StepCosts | None
    ) -> Replayed:
        """Return the counts of a run; see `expected_metrics`."""
        greedy, seed = self._part.sampling.greedy, self._part.generation.seed
        return expected_metrics(self.acceptance, gamma, rule=rule, greedy=greedy, costs=costs, seed=seed)

    def speedups(self, alone: float, rule: AcceptanceRule | None, costs: StepCosts) -> tuple[float, ...]:
        """Return the expected speed-up with each gamma from 0 that was replayed and timed.

        Args:
            alone: Expected seconds of the target without a drafter.
            rule: The acceptance rule; None for Algorithm 1.
            costs: The times of steps with this drafter.
        """
        key = costs, None if rule is None else repr(rule.config)
        if key not in self._speedups:
            most = min(self.acceptance[0].longest, len(costs.step) - 1)
            took = [self.expected(gamma, rule, costs).metrics.seconds for gamma in range(1, most + 1)]
            self._speedups[key] = (1.0, *(alone / one for one in took))
        return self._speedups[key]
