"""Running a study: each run is loaded and warmed up once, then the runs of a task take turns, in random order.

Taking turns spreads drift of the machine, such as throttling, evenly over the runs. The order is shuffled in every
repeat, the baseline included, so that no run always profits from its predecessor or from being the first.

Runs that are timed take turns in one process, which keeps the target and the runs that it has loaded, so that
timing a run again loads nothing. Runs that are not timed decode side by side on the workers of a pool. What a
worker is asked says everything that it needs, so that another worker can take over when it dies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from specdec_core.cluster import Pool
from specdec_core.interface import Progress
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import TargetConfig
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.grouping import batches_of
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import ReadyPrompt
from specdec_core.study.config.study import BASELINE, Run, Study, Task
from specdec_core.study.run.engine_run import EngineRun
from specdec_core.study.run.factory import ready_prompts
from specdec_core.study.run.finished_repeats import Repeat, RunKey
from specdec_core.study.run.prepared import Batch, RunJob
from specdec_core.study.run.provenance import study_provenance
from specdec_core.study.run.study_session import Session, StudyResult, open_session
from specdec_core.study.run.worker import TargetJob, TargetJobs, worker, working_here
from specdec_core.theory.intervals import relative_spread


class ReadyRun(NamedTuple):
    """A run that can be timed as often as asked.

    Attributes:
        measure: Decodes all prompts once, after the drafter has forgotten what earlier repeats taught it; called
            with the number of the repeat, from 1, and what is told the share that is done, between two batches.
        close: Frees the run.
    """

    measure: Callable[[int, Callable[[float], None]], Repeat]
    close: Callable[[], None]


class Targets:
    """The targets of a study's tasks.

    Args:
        pool: Runs what is asked of a target; None for this process.
        folder: Base for relative paths, which must lead to the same files on every worker.
        timed: Whether runs are timed, one at a time.
    """

    def __init__(self, pool: Pool | None, folder: Path, *, timed: bool) -> None:
        self.folder = folder
        self.side_by_side = pool is not None and not timed
        self._pool = pool

    def device(self, task: Task) -> str:
        """Return the device that times a task, with its hardware."""
        return "engines" if task.served else str(self._ask(task.target, _device))

    def prompts(self, task: Task, prompts: Sequence[PromptText]) -> list[ReadyPrompt]:
        """Return prompts of a task in the form that a decoder takes, after checking all of them."""
        if task.served:  # the engines encode them
            return [""] * len(prompts)
        ready: list[ReadyPrompt] = self._ask(task.target, _prompts, prompts, task.chat_template)
        return ready

    def prepare(self, task: Task, job: RunJob) -> ReadyRun | EngineRun:
        """Load and warm up a run, or start one that decodes beside others."""
        if job.run.engine is not None:
            batches = batches_of(task.prompts, job.batch_size)
            ordered = [task.prompts[number] for batch in batches for talk in batch for number in talk]
            return EngineRun(job.run.engine, job, ordered)
        jobs = TargetJobs(self._pool, task.target, self.folder)
        if self.side_by_side:  # a worker frees the run when it has decoded
            repeats = jobs.map(_decode, [(job,)])
            return ReadyRun(lambda *_: next(repeats), lambda: None)
        jobs.alone(_prepare, job)

        def in_turn(number: int, advance: Callable[[float], None]) -> Repeat:
            worker().advance = advance
            repeat: Repeat = jobs.alone(_measure, job, number)
            return repeat

        return ReadyRun(in_turn, partial(worker().forget, job.run.name))

    def _ask(self, target: TargetConfig, function: Callable[..., Any], *arguments: Any) -> Any:
        jobs = TargetJobs(self._pool, target, self.folder)
        return (jobs.ask if self.side_by_side else jobs.alone)(function, *arguments)


def _device(target: TargetJob) -> str:
    return describe_hardware(worker().target(target))


def _prompts(target: TargetJob, prompts: Sequence[PromptText], template: str | None) -> list[ReadyPrompt]:
    return ready_prompts(worker().target(target), prompts, template)


def _prepare(target: TargetJob, job: RunJob) -> None:
    worker().run(target, job)


def _measure(target: TargetJob, job: RunJob, number: int) -> Repeat:
    return worker().run(target, job).measure(number, worker().advance)


def _decode(target: TargetJob, job: RunJob) -> Repeat:
    try:
        return worker().run(target, job).measure(1, lambda _: None)
    finally:
        worker().forget()


def run_study(
    study: Study,
    progress: Progress,
    *,
    output: Path | None = None,
    fresh: bool = False,
    pool: Pool | None = None,
    registry: Registry | None = None,
) -> StudyResult:
    """Run a study, or resume one that was stopped.

    Args:
        study: The study to run.
        progress: Where progress is reported.
        output: Folder that stores finished repeats, which the caller has locked with `exclusive_lock`; without it,
            a stopped study cannot be resumed.
        fresh: Discard what an earlier study left in the folder.
        pool: Workers that load the targets and time the runs, with the installed plugins; by default this process.
            Runs that are not timed decode side by side.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: If a target cannot be loaded or cannot decode its prompts, or if the folder holds the results
            of another study. Any other failing run is recorded in the result, and the others continue.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    registry = registry or default_registry()
    folder = study.folder.absolute()  # wherever a plugin changes to
    targets = Targets(pool, folder, timed=study.config.timing)
    count = sum(len(task.runs) for task in study.tasks) * study.repeats.max
    opened = open_session(
        output,
        lambda: study_provenance(study, targets.device(study.tasks[0]), registry),
        progress,
        fresh=fresh,
        count=count,
        unit="repeats",
        at_most=study.repeats.min < study.repeats.max,
    )
    with working_here(registry, progress), opened as (session, provenance):
        runs = _Runs(study, targets, progress, session, count)
        try:
            runs.run()
        finally:
            runs.close()
    return StudyResult(study, session.finished, session.failed, provenance)


def turns(task: Task, repeat: int) -> list[Run]:
    """Return the runs of a task in the order in which a repeat times them.

    The order is random, but follows from the task's seed and name and the number of the repeat, so a resumed study
    continues it.

    Args:
        task: The task.
        repeat: Number of the repeat, from 1.
    """
    order = list(task.runs)
    Random(f"{task.generation.seed} {task.name} {repeat}").shuffle(order)
    return order


class _Runs:
    """The runs of a study that take turns."""

    def __init__(self, study: Study, targets: Targets, progress: Progress, session: Session, count: int) -> None:
        self._study, self._targets, self._progress, self._session = study, targets, progress, session
        self._count = count
        self._ready: dict[RunKey, ReadyRun | EngineRun] = {}

    def run(self) -> None:
        unfinished = [task for task in self._study.tasks if next(self._todo(task), None) is not None]
        waiting: list[Task] = []
        for _, tasks in groupby(unfinished, key=lambda task: task.target):
            # The prompts of all tasks with this target are checked before the first task takes its time.
            ready = [(task, list(self._batches(task)), list(self._batches(task, warmup=True))) for task in tasks]
            for task, batches, warmup in ready:
                self._load(task, batches, warmup)
                if self._targets.side_by_side:
                    waiting.append(task)
                else:
                    self._decode(task)
                    self.close()
        for task in waiting:
            self._decode(task)

    def _todo(self, task: Task) -> Iterator[tuple[Run, int]]:
        """Yield the unfinished repeats of a task in the order in which the runs take turns, until they suffice."""
        repeats = self._study.repeats
        for number in range(1, repeats.max + 1):
            if all(self._session.done(task, run, number) for run in task.runs):
                continue
            if number > repeats.min and self._settled(task, number - 1):
                return
            order = turns(task, number) if self._study.config.timing else task.runs
            yield from ((run, number) for run in order if not self._session.done(task, run, number))

    def _settled(self, task: Task, repeats: int) -> bool:
        """Return whether every speed-up of a task is known well enough after so many repeats.

        Runs that failed are not compared, so they prolong nothing.
        """
        numbers = range(1, repeats + 1)
        baseline = [
            self._session.finished[task.name, BASELINE, number].metrics.tokens_per_second for number in numbers
        ]
        for run in task.runs:
            timed = [self._session.finished.get((task.name, run.name, number)) for number in numbers]
            speeds = [one.metrics.tokens_per_second for one in timed if one is not None and not one.failures]
            if len(speeds) < repeats:
                continue
            spread = relative_spread([speed / plain for speed, plain in zip(speeds, baseline, strict=True)])
            if spread is None or spread > self._study.config.repeats.spread:
                return False
        return True

    def _load(self, task: Task, batches: Sequence[Batch], warmup: Sequence[Batch]) -> None:
        # All runs are loaded before the first is timed, so that memory is the same in every repeat.
        last = self._study.repeats.max
        runs = [run for run in task.runs if any(not self._session.done(task, run, n) for n in range(1, last + 1))]
        self._progress.stage(task.with_task("loading drafters and warming up"), len(runs))
        for done, run in enumerate(runs):
            self._progress.advance(done, run.name)
            self._attempt(task, run, partial(self._prepare, task, run, batches, warmup))

    def _decode(self, task: Task) -> None:
        what = "timing" if self._study.config.timing else "decoding"
        self._progress.stage(task.with_task(what), self._count)
        self._progress.advance(len(self._session.finished))
        for run, number in self._todo(task):
            self._attempt(task, run, partial(self._measure, task, run, number))

    def close(self) -> None:
        """Free the runs of a task."""
        while self._ready:
            self._ready.popitem()[1].close()

    def _attempt(self, task: Task, run: Run, action: Callable[[], None]) -> None:
        self._session.attempt([task], run, action)
        key = task.name, run.name
        if key in self._session.failed and key in self._ready:
            self._ready.pop(key).close()

    def _prepare(self, task: Task, run: Run, batches: Sequence[Batch], warmup: Sequence[Batch]) -> None:
        job = RunJob(
            task.name,
            run,
            task.sampling,
            task.generation,
            batches,
            self._study.config.batch_size,
            self._targets.folder,
            self._study.config.auto_find_batch_size,
            warmup,
        )
        ready = self._targets.prepare(task, job)
        if isinstance(ready, EngineRun):
            ready.check_continues(self._session.finished.of_run(task.name, run.name).values())
        self._ready[task.name, run.name] = ready

    def _measure(self, task: Task, run: Run, number: int) -> None:
        def progress(share: float) -> None:
            self._progress.advance(len(self._session.finished) + share, f"{run.name}, repeat {number}")

        repeat = self._ready[task.name, run.name].measure(number, progress)
        batches = batches_of(task.prompts, self._study.config.batch_size)
        repeat = repeat.in_order([number for batch in batches for talk in batch for number in talk])
        note = f"{run.name}, repeat {number}: {repeat.metrics.tokens_per_second:.1f} tokens/s"
        if self._study.config.timing:
            repeat = replace(repeat, turn=turns(task, number).index(run) + 1)
        else:
            repeat = repeat.without_times()
            note = f"{run.name}: block efficiency {repeat.metrics.block_efficiency:.2f}"
        self._session.add(repeat)
        self._progress.advance(len(self._session.finished), note)

    def _batches(self, task: Task, *, warmup: bool = False) -> Iterator[Batch]:
        """Yield the batches of prompts with their seeds, which are the same in every repeat, run and batch size.

        The turns of a conversation stay together.

        Args:
            task: The task.
            warmup: Yield those of the warm-up prompts.

        Raises:
            PromptError: If the target cannot take some of the prompts; every line begins with the task's name.
        """
        texts = task.warmup if warmup else task.prompts
        try:
            prompts = self._targets.prompts(task, texts)
        except PromptError as error:
            raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
        first = len(task.prompts) if warmup else 0  # other seeds
        seed = task.generation.seed
        for batch in batches_of(texts, self._study.config.batch_size):
            turns = [[prompts[number] for number in talk] for talk in batch]
            seeds = [[row_seed(seed, first + number) for number in talk] for talk in batch]
            yield Batch(turns, seeds, [texts[talk.start].metadata for talk in batch])
