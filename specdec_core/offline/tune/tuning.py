"""`tune`: record, measure, race, confirm, and write the winner."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specdec_core.cluster import Pool, pooled
from specdec_core.decoding import make_gamma
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.interface.files import writing_file
from specdec_core.offline.candidate_runs import default_study
from specdec_core.offline.record.outline import verify_times
from specdec_core.offline.record.reader import read_record
from specdec_core.offline.record.recording import RecordOptions, record_tasks
from specdec_core.offline.record.tasks import named_models, part_for
from specdec_core.offline.record.workers import RecordedTarget
from specdec_core.offline.replay.runs import Replayer
from specdec_core.offline.tune import costs
from specdec_core.offline.tune.expected_seconds import ExpectedSeconds
from specdec_core.offline.tune.finalists import Choice, choose, expected, finals
from specdec_core.offline.tune.race import Race, RaceSettings, race
from specdec_core.offline.tune.tuning_result import TunedTask, Tuning
from specdec_core.offline.tune.winning_study import folder_of, winning_study, write_study
from specdec_core.registry import Registry, default_registry, nested_settings
from specdec_core.study import Run, Study, Task, compare
from specdec_core.study.run.factory import load_target
from specdec_core.study.run.folder import RESUMED, exclusive_lock, when_stopped
from specdec_core.study.run.worker import TargetJobs

if TYPE_CHECKING:
    from specdec_core.costs import Machine
    from specdec_core.interface import Progress
    from specdec_core.interface.settings import TargetConfig
    from specdec_core.models import LoadedModel
    from specdec_core.offline.record.format import Record, RecordPart


_WITHOUT_TARGET = "; or tune without it: --no-confirm and --machine FILE, which has the times of another machine"


@dataclass(frozen=True)
class TuneOptions:
    """How to tune.

    Attributes:
        race: How candidates are raced.
        confirm: Whether the finalists are timed live.
        live_prompts: Number of prompts, from the first, that each is timed on; None for all.
        samples: Texts that are recorded of each prompt, where the target samples and no record is given.
        fresh: Discard what an earlier tuning left behind.
    """

    race: RaceSettings = field(default_factory=RaceSettings)
    confirm: bool = True
    live_prompts: int | None = 16
    samples: int = 1
    fresh: bool = False


def tune(
    study: Study | None,
    progress: Progress,
    *,
    record: str | Path | None = None,
    target: TargetConfig | None = None,
    machine: Path | None = None,
    task: str | None = None,
    output: Path | None = None,
    options: TuneOptions | None = None,
    settings: Sequence[str] = (),
    ray: str | Pool | None = None,
    registry: Registry | None = None,
) -> Tuning:
    """Find the fastest run of a study.

    Args:
        study: The candidates are its runs; None for the installed drafters with gammas 1 to 8.
        progress: Where progress is reported.
        record: A record of its target on its prompts; without one, they are recorded.
        target: Without a study, the target of the record: one of the hub is loaded only if it is named.
        machine: A file of `specdec measure`; without one, steps are timed on this machine.
        task: The only task to tune; by default all.
        output: The YAML file for the winning study. A folder beside it keeps what was recorded and measured, and
            `tune.json`; without it nothing is kept.
        options: How to tune.
        settings: Overrides in the form `key=value` for the study that is made if none is given.
        ray: Address of a Ray cluster whose workers record, replay and time; None for this process.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: The study and the record do not fit, no candidate can be replayed, or the target cannot be
            loaded where it is needed.
        KeyboardInterrupt: On Ctrl-C; the message says what is kept.
    """
    registry = registry or default_registry()
    with _folder(output) as folder, pooled(ray, progress) as pool:
        job = _Job(progress, options or TuneOptions(), registry, folder, pool)
        kept = f"stopped; what was recorded and measured is kept in {folder}. {RESUMED}"
        if output is None:
            kept = "stopped; nothing was kept. With --output FILE, what was recorded and measured is."
        with when_stopped(lambda: kept):
            return job.run(study, record, target, machine, task, output, settings)


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """Yield the folder for everything but the winning study."""
    if output is None:
        with tempfile.TemporaryDirectory(prefix="specdec-tune-") as name:
            yield Path(name)
        return
    with exclusive_lock(folder := folder_of(output).absolute()):
        yield folder


@dataclass
class _Job:
    """One tuning, and how long each part of it took."""

    progress: Progress
    options: TuneOptions
    registry: Registry
    folder: Path
    pool: Pool | None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(
        self,
        study: Study | None,
        record: str | Path | None,
        target: TargetConfig | None,
        machine: Path | None,
        task: str | None,
        output: Path | None,
        settings: Sequence[str],
    ) -> Tuning:
        opened = None if record is None else read_record(record)
        left_out: Mapping[str, str] = {}
        if study is None:
            if opened is None:
                raise ConfigError("nothing to tune: pass a study, or a record with --record (builtin:code ships).")
            opened = opened if target is None else opened.naming(target)
            if self.options.confirm:
                opened.check_named(otherwise=_WITHOUT_TARGET)
            study, left_out = default_study(opened, settings, self.registry)
        elif target is not None:
            raise ConfigError("--target: the study names its target; leave it out.")
        elif opened is not None:
            opened = replace(opened, named=named_models(study.tasks))
        tasks = study.chosen([task] if task else ())
        if opened is None:
            with self._timed("record"):
                opened = replace(self._recorded(study, tasks), named=named_models(tasks))
        parts = [part_for(opened, one) for one in tasks]
        raced = self._races(study, tasks, opened, parts, machine)
        choices = self._choices(study, {name: one for name, (one, _) in raced.items()})
        found = [
            TunedTask(name, one, _plain_speed(here), choices[name], here.target.noise, here.note)
            for name, (one, here) in raced.items()
        ]
        where = next(here.name for _, here in raced.values())
        name = study.path.name if record is None else str(record)
        return self._written(study, name, where, found, left_out, output)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - began

    def _recorded(self, study: Study, tasks: Sequence[Task]) -> Record:
        return record_tasks(
            tasks,
            self.folder / "record",
            self.progress,
            RecordOptions(samples=self.options.samples),
            folder=study.folder,
            fresh=self.options.fresh,
            pool=self.pool,
        )

    def _races(
        self,
        study: Study,
        tasks: Sequence[Task],
        record: Record,
        parts: Sequence[RecordPart],
        machine: Path | None,
    ) -> dict[str | None, tuple[Race, Machine]]:
        """Return the race of each task, and the seconds of steps that it used."""
        found: dict[str | None, tuple[Race, Machine]] = {}
        for number, alike in enumerate(_alike(tasks)):
            runs = list({run.name: run for one in alike for run in one.runs[1:]}.values())
            warmest = max(alike, key=lambda one: one.sampling.temperature)
            every = replace(warmest, runs=(*warmest.runs[:1], *runs))
            if machine is not None:
                target = self._target(study, every, timed=False)
                here = costs.read_costs(machine, runs)
            else:
                part = parts[tasks.index(warmest)]
                target, here = self._measured(study, every, record, part, number)
            for one in alike:
                with self._timed("race"):
                    part = parts[tasks.index(one)]
                    found[one.name] = self._race(study, one, record, part, here, target), here
        return {one.name: found[one.name] for one in tasks}

    def _target(self, study: Study, task: Task, *, timed: bool) -> LoadedModel | None:
        """Load the target where it is timed, or drafters read its hidden states; with a pool, workers load it."""
        if self.pool is not None:
            return None
        if not timed and not any(_reads_hidden(self.registry, run.drafter) for run in task.runs[1:]):
            return None
        self.progress.stage(f"loading {task.target.model}")
        try:
            return load_target(task.target, study.folder)
        except SpecdecError as error:
            if not timed:
                raise
            why = "its steps are timed here; --machine FILE takes the times from a file of `specdec measure`."
            raise type(error)(f"{error}\nThe target is loaded because {why}") from error

    def _measured(
        self, study: Study, task: Task, record: Record, part: RecordPart, number: int
    ) -> tuple[LoadedModel | None, Machine]:
        """Return the target if it is loaded, and the seconds of steps: T(k) of the record, or all timed here."""
        gamma = max((_max_gamma(run, self.registry) for run in task.runs[1:]), default=1)
        path, batch_size = self.folder / f"measured-{number}.json", study.config.batch_size
        if self.options.fresh:
            path.unlink(missing_ok=True)
        steps = costs.CandidateTimes(path, record, task, gamma, batch_size, pooled=self.pool is not None)
        times = steps.target
        if times is None:
            record.check_named(study.folder, _WITHOUT_TARGET)
        target = self._target(study, task, timed=times is None)
        with self._timed("measure"):
            if times is None:
                prompts = tuple(dict.fromkeys(text.prompt for text in part))
                how = prompts, part.header, gamma, costs.TIMINGS
                if target is not None:
                    times = verify_times(target, *how, self.progress, batch_size)
                else:
                    self.progress.stage("timing the target")
                    jobs = TargetJobs(self.pool, task.target, study.folder)
                    times = RecordedTarget(jobs).verify_times(*how, batch_size)
            return target, steps.machine(self._replayer(study, record, part, target), times, self.progress)

    def _replayer(self, study: Study, record: Record, part: RecordPart, target: LoadedModel | None) -> Replayer:
        return Replayer(
            record,
            part,
            study.folder,
            self.registry,
            target=target,
            pool=self.pool,
        )

    def _race(
        self,
        study: Study,
        task: Task,
        record: Record,
        part: RecordPart,
        machine: Machine,
        target: LoadedModel | None,
    ) -> Race:
        runs = task.runs[1:]
        seconds = ExpectedSeconds(self._replayer(study, record, part, target), runs, machine, self.progress)
        prompts, tokens = [], []
        for text in part:
            prompts.append(text.number)
            tokens.append(len(text.tokens))
        return race([run.name for run in runs], prompts, tokens, seconds, self.options.race, self.progress)

    def _choices(self, study: Study, races: Mapping[str | None, Race]) -> Mapping[str | None, Choice]:
        finalists = {task: one.finalists for task, one in races.items()}
        if not self.options.confirm:
            return {task: expected(names) for task, names in finalists.items()}
        with self._timed("live"):
            live = finals(study, finalists, self.options.live_prompts)
            fresh, pool = self.options.fresh, self.pool
            timed = compare(live, self.folder / "live", fresh=fresh, ray=pool, progress=self.progress)
        rows = {task: [row for row in timed.rows if row.task == task] for task in finalists}
        return {task: choose(rows[task], names) for task, names in finalists.items()}

    def _written(
        self,
        study: Study,
        record: str,
        machine: str,
        tasks: Sequence[TunedTask],
        left_out: Mapping[str, str],
        output: Path | None,
    ) -> Tuning:
        winners = {one.task: one.choice.run for one in tasks}
        best = winning_study(study, winners, Path() if output is None else output.parent)
        done = Tuning(study, record, machine, tuple(tasks), best, left_out, dict(self.seconds))
        if output is None:
            return done
        write_study(output, best, done.comment())
        everything = self.folder / "tune.json"
        with writing_file(everything) as temporary:
            temporary.write_text(json.dumps(done.to_dict(), indent=2) + "\n", encoding="utf-8")
        return replace(done, files=(output, everything))


def _alike(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the tasks in groups of one target and the same prompts, whose steps take equally long."""
    groups: list[list[Task]] = []
    for task in tasks:
        for group in groups:
            if (group[0].target, group[0].prompts_config) == (task.target, task.prompts_config):
                group.append(task)
                break
        else:
            groups.append([task])
    return groups


def _plain_speed(machine: Machine) -> float:
    """Return the tokens per second without a drafter, prompts not counted."""
    return machine.batch_size / machine.target.step[0]


def _max_gamma(run: Run, registry: Registry) -> int:
    """Return the longest draft of a run; 1 if its controller cannot be made, which the race says."""
    try:
        made = make_gamma(run.gamma, registry)
    except SpecdecError:
        return 1
    return 1 if made is None else max(1, made.max_gamma)


def _reads_hidden(registry: Registry, drafter: Any) -> bool:
    """Return whether a drafter, or one inside it that drafts for the same target, reads its hidden states."""
    if registry.drafter_config(drafter.name).needs_hidden_states:
        return True
    inside = (one for one in nested_settings(drafter) if one.marker.kind == "drafter" and one.marker.same_target)
    return any(_reads_hidden(registry, one.config) for one in inside)
