"""Replaying a study on a record: the expected results of each run on the target's texts, without the target.

A drafter is asked for drafts along the recorded texts once, however many runs have it: what follows for each gamma
is computed. What comes out is the result of a study, with expected counts and seconds instead of measured ones.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from specdec_core.cluster import Pool
from specdec_core.costs.step_costs import Machine, StepCosts
from specdec_core.decoding.arguments import make_controller, require
from specdec_core.interface import AcceptanceRule, LenienceConfig, Progress, RuleConfig
from specdec_core.interface.controllers import FixedGamma, GammaController, LenienceController
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models.device import describe_device
from specdec_core.offline.record.format import Record, RecordedText, RecordPart, unreplayable
from specdec_core.offline.record.recorded_target import recorded_tokenizer
from specdec_core.offline.replay.drafted import Drafted, DrafterJob
from specdec_core.offline.replay.replayed_metrics import Replayed, TextAcceptance, expected_metrics, rule_name
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.study.config.study import Run, Study, Task, drafter_key
from specdec_core.study.run.finished_repeats import Output, Repeat, ReplayedOn, outgrown
from specdec_core.study.run.provenance import study_provenance
from specdec_core.study.run.study_session import Session, StudyResult, open_session
from specdec_core.study.run.worker import working_here
from specdec_core.theory.intervals import ratio_interval

_How: TypeAlias = tuple[GammaController, AcceptanceRule | None]
"""The gamma controller of a run, and its acceptance rule; None for Algorithm 1."""
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
        lambda: {
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
        },
        progress,
        fresh=fresh,
        count=sum(len(task.runs) for task in every.tasks),
        unit="runs",
    )
    with working_here(registry, progress), opened as (session, provenance):
        replay = _Replay(study, record, name, machines, registry, session, pool)
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


@dataclass(eq=False)
class _Replay:
    """The shared parts of a replay's tasks."""

    study: Study
    record: Record
    name: str
    machines: Sequence[Machine | None]
    registry: Registry
    session: Session
    pool: Pool | None

    def __post_init__(self) -> None:
        self.timed_here = not self.machines
        times = self.record.header.times
        self.machines = self.machines or [None if times is None else times.machine]


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
        self._texts = _RecordedTexts(part)

    def run(self) -> None:
        """Replay the runs that are not finished."""
        if not len(self._part):
            raise ConfigError(self._task.with_task(f"{self._replay.record.path} holds no texts of this task yet."))
        baseline, *_ = self._task.runs
        for own, machine in self._shown:
            if not self._session.done(own, baseline):
                costs = None if machine is None else machine.target
                self._add(own, baseline, machine, self._texts.alone(costs), costs, self._gaps(), self._outputs())
        begun = [self._begin(runs) for runs in _by_drafter(self._task) if not self._all_done(runs)]
        if self._replay.pool is not None and self._replay.timed_here:
            for hows, drafted in begun:  # a drafter is timed when no other is asked
                self._check_drafts(hows, drafted)
        for hows, drafted in begun:
            self._check_drafts(hows, drafted)
            for run, how in hows.items():
                self._session.attempt(self._tasks, run, partial(self._expect, run, *how, drafted))

    def _all_done(self, runs: Sequence[Run]) -> bool:
        return all(self._session.done(own, run) for own in self._tasks for run in runs)

    def _begin(self, runs: Sequence[Run]) -> tuple[dict[Run, _How], Drafted]:
        """Return how those runs of a drafter decode that can be replayed, and their drafter."""
        found = {run: self._session.attempt(self._tasks, run, partial(self._how, run)) for run in runs}
        hows = {run: how for run, how in found.items() if how is not None}
        longest = max((gamma.max_gamma for gamma, _ in hows.values()), default=0)
        record, part = self._replay.record, self._part
        job = DrafterJob.of(record, record.parts.index(part), runs[0], max(1, longest), self._replay.study.folder)
        return hows, Drafted(job, self._replay.pool, part.header, len(part) if hows else 0)

    def _how(self, run: Run) -> _How:
        """Return the gamma controller and the acceptance rule of a run.

        Raises:
            ConfigError: It cannot be replayed; with the reason.
            PluginError: A plugin cannot be loaded.
        """
        if run.drafter is None:
            raise ConfigError(
                f"run {run.name!r} is decoded by an engine: say with `drafter` and `gamma` what the server drafts "
                "with, and the replay forecasts it."
            )
        greedy, registry = self._part.header.sampling.greedy, self._replay.registry
        lenience = make_controller("lenience", run.lenience, registry)
        require(run.problems(greedy=greedy))
        rule = make_controller("rule", run.rule, registry)
        check_replayable(rule=rule, lenience=lenience, greedy=greedy, generation=self._task.generation)
        gamma = make_controller("gamma", run.gamma, registry)
        assert gamma is not None, "only the baseline has none"
        return gamma, rule

    def _check_drafts(self, hows: dict[Run, _How], drafted: Drafted) -> None:
        """Have a drafter draft along all texts; what is wrong with it ends all runs that have it."""
        if not hows:
            return
        first, *others = hows
        if self._session.attempt(self._tasks, first, lambda: drafted.acceptance) is None:
            self._session.fail(self._tasks, others, like=first)
            hows.clear()

    def _expect(self, run: Run, gamma: GammaController, rule: AcceptanceRule | None, drafted: Drafted) -> None:
        """Compute what follows for a run on each machine."""
        for own, machine in self._shown:
            if self._session.done(own, run):
                continue
            costs, notes = self._costs(run, machine, drafted, gamma.max_gamma)
            replayed = drafted.expected(gamma, rule, costs)
            speedups: tuple[float, ...] = ()
            if costs is not None:
                speedups = drafted.speedups(self._texts.alone(costs).metrics.seconds, rule, costs)
            elif not isinstance(gamma, FixedGamma):
                notes.append("its controller was told no seconds: one that learns from them decides otherwise.")
            notes = [*drafted.notes, *replayed.notes, *notes]
            self._add(own, run, machine, replayed, costs, notes, speedups=speedups)

    def _costs(
        self, run: Run, machine: Machine | None, drafted: Drafted, gamma: int
    ) -> tuple[StepCosts | None, list[str]]:
        """Return the costs of a run's steps on a machine, and what to note; None if no seconds can be expected."""
        if machine is None:
            return None, []
        notes = []
        if self._replay.timed_here:
            costs = drafted.costs(machine.target)
            here = drafted.device
            if not machine.device.startswith(here):
                notes.append(f"T(k) was recorded on {machine.device}; the drafter was timed here, on {here}.")
        else:
            key = drafter_key(run.drafter, run.draft_sampling)
            if key not in machine.drafters:
                return None, [f"{machine.name} has no times of this drafter, so no speeds are expected there."]
            costs = machine.drafters[key]
        try:
            costs.check(gamma)
        except ConfigError as error:
            return None, [f"no speeds are expected on {machine.name}: {error}"]
        return costs, notes

    def _add(
        self,
        task: Task,
        run: Run,
        machine: Machine | None,
        replayed: Replayed,
        costs: StepCosts | None,
        notes: Sequence[str],
        outputs: Sequence[Output] = (),
        speedups: tuple[float, ...] = (),
    ) -> None:
        """Keep the findings about a run."""
        where = None
        if machine is not None and costs is not None:
            where = machine.device if self._replay.timed_here else machine.name
        on = self._texts.certain(replayed, self._replay.name, costs, where)
        self._session.add(
            Repeat(
                *(task.name, run.name, _ONLY, replayed.metrics, (), tuple(outputs)),
                device=describe_device(torch.device("cpu")) if machine is None else machine.device,
                notes=tuple(dict.fromkeys(notes)),
                replayed=replace(on, speedup_by_gamma=speedups),
                by_prompt=self._texts.by_prompt(replayed),
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


class _RecordedTexts:
    """The texts of a part, as the target decodes them alone.

    Args:
        part: The part.

    Attributes:
        prompts: Number of the prompt of each text; of a conversation, that of its first turn.
    """

    def __init__(self, part: RecordPart) -> None:
        self._texts = [_undrafted(text) for text in part]
        self._numbers = [text.number for text in self._texts]
        self.prompts = list(map(part.conversation_of, self._numbers))
        self._count = len(set(self._numbers)) + part.outgrown

    def __len__(self) -> int:
        return len(self._texts)

    def alone(self, costs: StepCosts | None) -> Replayed:
        """Return the target's counts without a drafter; without costs, no times."""
        return expected_metrics(self._texts, 0, costs=costs)

    def certain(self, replayed: Replayed, record: str, costs: StepCosts | None, where: str | None) -> ReplayedOn:
        """Return what a run was replayed on, with the intervals of its numbers over texts.

        Args:
            replayed: The run.
            record: Name of the record.
            costs: The times of its steps; None for none.
            where: The name of their machine in results.
        """
        own, alone = replayed.by_text, self.alone(costs).by_text
        low, high = ratio_interval(own["tokens"].tolist(), own["steps"].tolist(), self.prompts) or (None, None)
        faster: tuple[float | None, float | None] = (None, None)
        if "seconds" in own and "seconds" in alone:
            faster = ratio_interval(alone["seconds"].tolist(), own["seconds"].tolist(), self.prompts) or faster
        return ReplayedOn(
            *(record, len(self), len(set(self.prompts)), int(own["tokens"].sum())),
            machine=None if costs is None else where,
            low=low,
            high=high,
            drawn=replayed.drawn,
            speedup_low=faster[0],
            speedup_high=faster[1],
            noise=None if costs is None else costs.noise,
        )

    def by_prompt(self, replayed: Replayed) -> tuple[tuple[float, ...], ...]:
        """Return the counts of `Repeat.by_prompt`; zeros for a turn that was not decoded."""
        sums = [np.bincount(self._numbers, each, self._count).tolist() for each in replayed.by_text.values()]
        return tuple(zip(*sums, strict=True))


def _undrafted(text: RecordedText) -> TextAcceptance:
    """Return a text without any draft along it."""
    length = len(text.tokens)
    return TextAcceptance(
        ratio=np.zeros((length, 0)),
        offered=np.zeros(length, dtype=np.int64),
        confidence=np.zeros((length, 0), dtype=np.float32),
        tokens=text.tokens,
        limit=length,
        reach=length - 1,
        number=text.number,
        sample=text.sample,
    )


def check_replayable(
    *,
    rule: AcceptanceRule | None = None,
    lenience: LenienceController | None = None,
    greedy: bool = False,
    generation: GenerationSettings | None = None,
) -> None:
    """Check that a run is lossless, and that its rule says how it is replayed.

    A controller that asks for trees raises when it does so, and a rule that takes more of p than the record
    holds when the texts have been read.

    Args:
        rule: The acceptance rule; None for Algorithm 1.
        lenience: The lenience controller; None for l = 1.
        greedy: Whether the target decodes greedily.
        generation: Length limits, seed, and beams.

    Raises:
        ConfigError: It cannot be replayed; with the reason, and what to do.
    """
    config = None if lenience is None else lenience.config
    if config is not None and not (isinstance(config, LenienceConfig) and config.lossless_for(greedy=greedy)):
        raise ConfigError(
            "lenience below 1 cannot be replayed: once it accepts a token that the target would not have emitted, "
            "the text goes on otherwise than the recorded one. Remove `lenience`, or compare live."
        )
    if rule is not None and (reason := _unknown(rule, greedy)):
        raise ConfigError(
            f"the rule {rule_name(rule)!r} cannot be replayed{'' if greedy else ' at this temperature'}: {reason} "
            "Use the rule `token`, or compare live."
        )
    for key in () if generation is None else unreplayable(generation):
        why = "a record holds texts, and p without a constraint"
        raise ConfigError(f"{key} cannot be replayed: {why}. Compare live, or remove it.")


def _unknown(rule: AcceptanceRule, greedy: bool) -> str | None:
    """Return why a replay does not know what a rule accepts, from what its settings declare; None if it does."""
    config = rule.config
    if not (isinstance(config, RuleConfig) and config.lossless_for(greedy=greedy)):
        return (
            "it is lossy, and once it accepts a token that the target would not have emitted, the text goes on "
            "otherwise than the recorded one."
        )
    if not greedy and config.replays_from is None:
        return "its settings do not say, as `replays_from`, what of p a replay takes."
    return None


def _by_drafter(task: Task) -> list[list[Run]]:
    """Return the runs of a task, those of one drafter together, without the baseline."""
    found: dict[str, list[Run]] = {}
    for run in task.runs[1:]:
        found.setdefault(drafter_key(run.drafter, run.draft_sampling), []).append(run)
    return list(found.values())
