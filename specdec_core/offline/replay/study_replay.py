"""Replaying a study on a record: the expected results of each run on the target's texts, without the target.

A drafter is asked for drafts along the recorded texts once, however many runs have it: what follows for each gamma
is computed. What comes out is the result of a study, with expected counts and seconds instead of measured ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from specdec_core.cluster import Pool
from specdec_core.costs import Machine, StepCosts
from specdec_core.interface import AcceptanceRule, GammaController, Progress
from specdec_core.interface.controllers import FixedGamma
from specdec_core.interface.errors import ConfigError
from specdec_core.models.device import describe_device
from specdec_core.offline.record.format import Record, RecordPart
from specdec_core.offline.record.recorded_target import recorded_tokenizer
from specdec_core.offline.replay import Replayed
from specdec_core.offline.replay.runs import Asked, Drafted, How, RecordedTexts, Replayer
from specdec_core.registry import Registry, default_registry
from specdec_core.study.config.study import Run, Study, Task, drafter_key
from specdec_core.study.report.quality import Output
from specdec_core.study.report.run_fields import ReplayedOn
from specdec_core.study.run.provenance import study_provenance
from specdec_core.study.run.repeats import Repeat, outgrown
from specdec_core.study.run.study_session import Session, StudyResult, open_session

_Runs: TypeAlias = tuple[dict[Run, How], Drafted]
"""The runs of a drafter, and what it drafted."""
_ONLY = 1
"""Number of the only repeat: an expectation needs no other."""


def replay_study(
    study: Study,
    record: Record,
    parts: Sequence[RecordPart],
    progress: Progress,
    *,
    name: str,
    machines: Sequence[Machine] = (),
    output: Path | None = None,
    fresh: bool = False,
    pool: Pool | None = None,
    registry: Registry | None = None,
) -> StudyResult:
    """Replay a study, or resume a replay that was stopped.

    Args:
        study: The study.
        record: The record.
        parts: What each of its tasks is replayed on.
        progress: Where progress is reported.
        name: Name of the record in results.
        machines: Machines whose seconds are expected. With several, each task becomes one for each of them. By
            default the machine that recorded, if its T(k) was recorded, with the time of the drafters here.
        output: Folder that stores finished runs, which the caller has locked with `exclusive_lock`; without it, a
            stopped replay cannot be resumed.
        fresh: Discard what an earlier study left in the folder.
        pool: Workers that ask the drafters, with the installed plugins; by default this process.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: If the folder holds the results of another study, or if two machines have one name. A run
            that cannot be replayed is in the result with the reason, and the others continue.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    _check_names(machines)
    registry = registry or default_registry()
    shown = [_on_machines(task, machines) for task in study.tasks]
    every = replace(study, tasks=tuple(task for tasks in shown for task in tasks))
    opened = open_session(
        output,
        lambda: _provenance(study, record, parts, name, machines, registry),
        progress,
        fresh=fresh,
        count=sum(len(task.runs) for task in every.tasks),
        unit="runs",
    )
    with opened as (session, provenance):
        replay = _Replay(study, record, name, machines, registry, progress, session, pool)
        for task, part, tasks in zip(study.tasks, parts, shown, strict=True):
            _TaskReplay(replay, task, part, tasks).run()
    return StudyResult(every, session.finished, session.failed, provenance)


def _check_names(machines: Sequence[Machine]) -> None:
    again = [name for name, count in Counter(machine.name for machine in machines).items() if count > 1]
    if again:
        raise ConfigError(f"several machines are called {again[0]!r}; give each file a separate name.")


def _on_machines(task: Task, machines: Sequence[Machine]) -> list[Task]:
    """Return a task for each machine, named after it if there are several."""
    if len(machines) < 2:
        return [task]
    before = "" if task.name is None else f"{task.name} "
    return [replace(task, name=f"{before}on {machine.name}") for machine in machines]


def _provenance(
    study: Study,
    record: Record,
    parts: Sequence[RecordPart],
    name: str,
    machines: Sequence[Machine],
    registry: Registry,
) -> dict[str, Any]:
    """Return everything that must be equal for replayed runs to belong together."""
    return {
        **study_provenance(study, describe_device(torch.device("cpu")), registry),
        "order": "replayed",
        "record": {
            "name": name,
            "header": record.header.model_dump(mode="json"),
            "texts": [len(part) for part in parts],
        },
        "machines": [
            {
                "name": one.name,
                "verify": one.target.verify,
                "overhead": one.target.overhead,
                "draft": {drafter: costs.draft for drafter, costs in one.drafters.items()},
            }
            for one in machines
        ],
    }


class _Replay:
    """The shared parts of a replay's tasks."""

    def __init__(
        self,
        study: Study,
        record: Record,
        name: str,
        machines: Sequence[Machine],
        registry: Registry,
        progress: Progress,
        session: Session,
        pool: Pool | None,
    ) -> None:
        self.study, self.record, self.registry, self.progress = study, record, registry, progress
        self.name, self.session, self.pool = name, session, pool
        self.timed_here = not machines
        times = record.header.times
        self.machines: Sequence[Machine | None] = machines or [None if times is None else times.machine]


class _TaskReplay:
    """The replay of one task.

    Args:
        replay: What all tasks share.
        task: The task.
        part: The texts.
        shown: The task on each machine.
    """

    def __init__(self, replay: _Replay, task: Task, part: RecordPart, shown: Sequence[Task]) -> None:
        self._replay, self._session = replay, replay.session
        self._task, self._part, self._tasks = task, part, shown
        self._shown = list(zip(shown, replay.machines, strict=True))
        self._texts = RecordedTexts(part)
        self._replayer = Replayer(
            replay.record,
            part,
            replay.study.folder,
            replay.registry,
            progress=replay.progress,
            pool=replay.pool,
        )

    def run(self) -> None:
        """Replay the runs that are not finished."""
        if not len(self._texts):
            raise ConfigError(self._task.with_task(f"{self._replay.record.path} holds no texts of this task yet."))
        baseline, *_ = self._task.runs
        for own, machine in self._shown:
            if not self._session.done(own, baseline):
                costs = None if machine is None else machine.target
                alone = self._texts.alone(costs)
                on = self._certain(alone, costs, machine)
                self._add(own, baseline, machine, alone, on, self._gaps(), self._outputs())
        drafts = [self._begin(runs) for runs in _by_drafter(self._task) if not self._all_done(runs)]
        found: Iterable[_Runs | None] = (draft() for draft in drafts)
        if self._replay.pool is not None and self._replay.timed_here:
            found = list(found)  # a drafter is timed when no other is asked
        for each in found:
            if each is not None:
                hows, drafted = each
                for run, how in hows.items():
                    self._session.attempt(self._tasks, run, partial(self._expect, run, *how, drafted))

    def _all_done(self, runs: Sequence[Run]) -> bool:
        return all(self._session.done(own, run) for own in self._tasks for run in runs)

    def _begin(self, runs: Sequence[Run]) -> Callable[[], _Runs | None]:
        """Return a function that asks the drafter of some runs for its drafts, once; workers begin at once.

        It returns None where there is nothing to expect, as no run can be replayed.
        """
        found = {
            run: self._session.attempt(self._tasks, run, partial(self._replayer.how, run, self._task.generation))
            for run in runs
        }
        hows = {run: how for run, how in found.items() if how is not None}
        if not hows:
            return lambda: None
        longest = max(1, *(gamma.max_gamma for gamma, _ in hows.values()))
        first, *others = hows
        started = self._replayer.start(first, longest)

        def ask() -> _Runs | None:
            drafted = self._session.attempt(self._tasks, first, lambda: self._drafted(started()))
            if drafted is None:  # what is wrong with the drafter ends all runs that have it
                self._session.fail(self._tasks, others, like=first)
                return None
            return hows, drafted

        return ask

    def _drafted(self, replay: Asked) -> Drafted:
        """Return a drafter after it was asked for drafts along all texts."""
        return Drafted(replay, greedy=self._task.sampling.greedy, seed=self._task.generation.seed)

    def _expect(self, run: Run, gamma: GammaController, rule: AcceptanceRule | None, drafted: Drafted) -> None:
        """Compute what follows for a run on each machine."""
        for own, machine in self._shown:
            if self._session.done(own, run):
                continue
            costs, notes = self._costs(run, machine, drafted, gamma.max_gamma)
            replayed = drafted.expected(gamma, rule, costs)
            on = self._certain(replayed, costs, machine)
            if costs is not None:
                on = replace(on, speedup_by_gamma=drafted.speedups(self._texts, rule, costs))
            elif not isinstance(gamma, FixedGamma):
                notes = (
                    *notes,
                    "its controller was told no seconds: one that learns from them decides otherwise.",
                )
            self._add(own, run, machine, replayed, on, (*drafted.replay.notes, *replayed.notes, *notes))

    def _costs(
        self, run: Run, machine: Machine | None, drafted: Drafted, gamma: int
    ) -> tuple[StepCosts | None, tuple[str, ...]]:
        """Return the costs of a run's steps on a machine, and what to note; None if no seconds can be expected."""
        if machine is None:
            return None, ()
        notes: tuple[str, ...] = ()
        if self._replay.timed_here:
            costs = drafted.replay.costs(machine.target)
            here = drafted.replay.device
            if not machine.device.startswith(here):
                notes = (f"T(k) was recorded on {machine.device}; the drafter was timed here, on {here}.",)
        else:
            key = drafter_key(run.drafter, run.draft_sampling)
            if key not in machine.drafters:
                none = f"{machine.name} has no times of this drafter, so no speeds are expected there."
                return None, (none,)
            costs = machine.drafters[key]
        try:
            costs.check(gamma)
        except ConfigError as error:
            return None, (f"no speeds are expected on {machine.name}: {error}",)
        return costs, notes

    def _certain(self, replayed: Replayed, costs: StepCosts | None, machine: Machine | None) -> ReplayedOn:
        where = None
        if machine is not None:
            where = machine.device if self._replay.timed_here else machine.name
        return self._texts.certain(replayed, self._replay.name, costs, where)

    def _add(
        self,
        task: Task,
        run: Run,
        machine: Machine | None,
        replayed: Replayed,
        on: ReplayedOn,
        notes: Sequence[str],
        outputs: Sequence[Output] = (),
    ) -> None:
        """Keep the findings about a run."""
        device = describe_device(torch.device("cpu")) if machine is None else machine.device
        counted = (replayed.metrics, (), tuple(outputs))
        noted = tuple(dict.fromkeys(notes))
        by_prompt = self._texts.by_prompt(replayed)
        self._session.add(
            Repeat(
                *(task.name, run.name, _ONLY, *counted),
                device=device,
                notes=noted,
                replayed=on,
                by_prompt=by_prompt,
            )
        )

    def _gaps(self) -> list[str]:
        """Return the notes on texts that are not in the part."""
        notes = outgrown(self._part.outgrown)
        if not self._part.finished:
            there, whole = len(self._texts), self._part.header.texts
            notes.append(f"the record is unfinished: it has {there} of {whole} texts.")
        return notes

    def _outputs(self) -> list[Output]:
        """Return the text of each prompt, as the baseline's output; of several, the first."""
        tokenizer = recorded_tokenizer(self._replay.record)
        outputs = {}
        for text in self._part:
            if text.sample == 0:
                tokens = tuple(text.tokens.tolist())
                words = None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=True)
                outputs[text.number] = Output(tokens, words, finish_reason=text.finish_reason)
        # The turns between are those that outgrew the context.
        empty = Output((), "", finish_reason="context")
        return [outputs.get(number, empty) for number in range(len(outputs) + self._part.outgrown)]


def _by_drafter(task: Task) -> list[list[Run]]:
    """Return the runs of a task, those of one drafter together, without the baseline."""
    found: dict[str, list[Run]] = {}
    for run in task.runs[1:]:
        found.setdefault(drafter_key(run.drafter, run.draft_sampling), []).append(run)
    return list(found.values())
