"""Running a study: each run is loaded and warmed up once, then the runs of a task take turns, in random order.

Taking turns spreads drift of the machine, such as throttling, evenly over the runs. The order is shuffled in every
repeat, the baseline included, so that no run always profits from its predecessor or from being the first.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from specdec_core.cluster import Pool
from specdec_core.interface import PluginWarning, Progress
from specdec_core.interface.errors import ConfigError, PromptError, SpecdecError, exception_text, without_home
from specdec_core.registry import Registry, default_registry
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.study import BASELINE, Run, Study, Task, with_task
from specdec_core.study.run.folder import StorageError, exclusive_lock
from specdec_core.study.run.journal import Journal
from specdec_core.study.run.prepared import Batch, RunJob
from specdec_core.study.run.provenance import study_provenance
from specdec_core.study.run.repeats import Repeat, Repeats, RunKey
from specdec_core.study.run.targets import ReadyRun, Targets
from specdec_core.study.run.worker import working_here
from specdec_core.theory.intervals import relative_spread


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study.

    Attributes:
        study: The study.
        repeats: Every finished repeat.
        failed: Why each failed run was abandoned.
        provenance: Settings, versions and device, as plain data.
    """

    study: Study
    repeats: Repeats
    failed: Mapping[RunKey, str]
    provenance: Mapping[str, Any]

    def of_run(self, task: Task, run: str) -> dict[int, Repeat]:
        """Return the finished repeats of a run, by number."""
        return dict(sorted(self.repeats.of_run(task.name, run).items()))


def run_study(
    study: Study,
    progress: Progress,
    *,
    output: Path | None = None,
    fresh: bool = False,
    isolate: bool = False,
    pool: Pool | None = None,
    registry: Registry | None = None,
) -> StudyResult:
    """Run a study, or resume one that was stopped.

    Args:
        study: The study to run.
        progress: Where progress is reported.
        output: Folder that stores finished repeats; without it, a stopped study cannot be resumed.
        fresh: Discard what an earlier study left in the folder.
        isolate: Give each run a process of its own, which loads the target again, with the installed plugins.
        pool: Workers that load the targets and time the runs, with the installed plugins; by default this process.
            Runs that are not timed decode side by side.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: If a target cannot be loaded or cannot decode its prompts, if the folder holds the results of
            another study, or if another study is running there. Any other failing run is recorded in the result,
            and the others continue.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    registry = registry or default_registry()
    if isolate and any(task.target.tensor_parallel for task in study.tasks):
        raise ConfigError("a target with 'tensor_parallel' runs in the processes of torchrun; remove --isolate.")
    folder = study.folder.absolute()  # wherever a plugin changes to
    targets = Targets(pool, folder, timed=study.config.timing, isolate=isolate)
    with (
        exclusive_lock(output) if output is not None else nullcontext(),
        working_here(registry, progress),
        warnings.catch_warnings(),
    ):
        provenance = study_provenance(study, targets.device(study.tasks[0]), registry)
        journal = Journal(output, provenance, fresh=fresh) if output is not None else None
        session = _Session(study, targets, progress, journal)
        warnings.simplefilter("ignore", PluginWarning)  # the result reports failures of plugins
        try:
            session.run()
        except KeyboardInterrupt as stopped:
            stopped.args = (session.stopped(),)  # of its own kind, which says what stopped it
            raise
        finally:
            session.close()
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


def failure_lines(failed: Mapping[RunKey, str]) -> list[str]:
    """Return a line for each run that was abandoned."""
    return [with_task(task, f"{run} failed: {reason}") for (task, run), reason in failed.items()]


class _Session:
    """The state of a running study."""

    def __init__(
        self,
        study: Study,
        targets: Targets,
        progress: Progress,
        journal: Journal | None,
    ) -> None:
        self._study = study
        self._targets = targets
        self._progress = progress
        self._journal = journal
        self._prepared: dict[RunKey, ReadyRun] = {}
        repeats = study.repeats
        self._total = sum(len(task.runs) for task in study.tasks) * repeats.max
        self._most = "" if repeats.min == repeats.max else "at most "
        self.finished = Repeats() if journal is None else journal.finished
        self.failed: dict[RunKey, str] = {}

    def run(self) -> None:
        if self.finished:
            self._progress.measured({"repeats": self._total, "finished before": len(self.finished)})
        unfinished = [task for task in self._study.tasks if next(self._todo(task), None) is not None]
        waiting: list[Task] = []
        for _, tasks in groupby(unfinished, key=lambda task: task.target):
            # The prompts of all tasks with this target are checked before the first task takes its time.
            ready = [(task, list(self._batches(task)), list(self._batches(task, warmup=True))) for task in tasks]
            self._targets.release()
            for task, batches, warmup in ready:
                self._load(task, batches, warmup)
                if self._targets.side_by_side:
                    waiting.append(task)
                else:
                    self._decode(task)
                    self.close()
        for task in waiting:
            self._decode(task)

    def stopped(self) -> str:
        """Return what a signal leaves behind, and the runs that failed before it."""
        return "\n".join([*failure_lines(self.failed), f"stopped; {self._stored()}"])

    def _stored(self) -> str:
        if self._journal is None:
            return "nothing was stored. With --output DIR, a stopped study can be resumed."
        if (problem := self._journal.missing()) is not None:
            return problem
        done = f"{len(self.finished)} of {self._most}{self._total} repeats"
        return f"{done} are stored in {self._journal.path.parent}. Run the same command again to resume."

    def _todo(self, task: Task) -> Iterator[tuple[Run, int]]:
        """Yield the unfinished repeats of a task in the order in which the runs take turns, until they suffice."""
        repeats = self._study.repeats
        for number in range(1, repeats.max + 1):
            if all(self._done(task, run, number) for run in task.runs):
                continue
            if number > repeats.min and self._settled(task, number - 1):
                return
            order = turns(task, number) if self._study.config.timing else task.runs
            yield from ((run, number) for run in order if not self._done(task, run, number))

    def _done(self, task: Task, run: Run, number: int) -> bool:
        return (task.name, run.name) in self.failed or (task.name, run.name, number) in self.finished

    def _settled(self, task: Task, repeats: int) -> bool:
        """Return whether every speed-up of a task is known well enough after so many repeats.

        Runs that failed are not compared, so they prolong nothing.
        """
        numbers = range(1, repeats + 1)
        baseline = [self.finished[task.name, BASELINE, number].metrics.tokens_per_second for number in numbers]
        for run in task.runs:
            timed = [self.finished.get((task.name, run.name, number)) for number in numbers]
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
        runs = [run for run in task.runs if any(not self._done(task, run, n) for n in range(1, last + 1))]
        self._progress.stage(task.with_task("loading drafters and warming up"), len(runs))
        for done, run in enumerate(runs):
            self._progress.advance(done, run.name)
            self._attempt(task, run, partial(self._prepare, task, run, batches, warmup))

    def _decode(self, task: Task) -> None:
        what = "timing" if self._study.config.timing else "decoding"
        self._progress.stage(task.with_task(what), self._total)
        self._progress.advance(len(self.finished))
        for run, number in self._todo(task):
            self._attempt(task, run, partial(self._measure, task, run, number))

    def close(self) -> None:
        """Free the runs of a task, and end their processes."""
        while self._prepared:
            self._prepared.popitem()[1].close()

    def _attempt(self, task: Task, run: Run, action: Callable[[], None]) -> None:
        """Do something for a run. Whatever its plugins raise, sys.exit too, ends this run only."""
        try:
            action()
        except (KeyboardInterrupt, StorageError):
            raise
        except BaseException as error:
            if run.drafter is None:
                raise  # there is nothing to compare without a baseline, in which no plugin takes part
            self.failed[task.name, run.name] = failure_text(error)
            if (task.name, run.name) in self._prepared:
                self._prepared.pop((task.name, run.name)).close()

    def _prepare(self, task: Task, run: Run, batches: Sequence[Batch], warmup: Sequence[Batch]) -> None:
        job = RunJob(
            task.name,
            run,
            task.sampling,
            task.generation,
            batches,
            self._study.config.batch_size,
            self._targets.folder,
            self._study.plugin_timeout,
            warmup,
        )
        self._prepared[task.name, run.name] = self._targets.prepare(task, job)

    def _measure(self, task: Task, run: Run, number: int) -> None:
        def progress(share: float) -> None:
            self._progress.advance(len(self.finished) + share, f"{run.name}, repeat {number}")

        repeat = self._prepared[task.name, run.name].measure(number, progress)
        note = f"{run.name}, repeat {number}: {repeat.metrics.tokens_per_second:.1f} tokens/s"
        if self._study.config.timing:
            repeat = replace(repeat, turn=turns(task, number).index(run) + 1)
        else:
            repeat = repeat.without_times()
            note = f"{run.name}: block efficiency {repeat.metrics.block_efficiency:.2f}"
        if self._journal is not None:
            self._journal.add(repeat)  # to `finished`, too
        else:
            self.finished.add(repeat)
        self._progress.advance(len(self.finished), note)

    def _batches(self, task: Task, *, warmup: bool = False) -> Iterator[Batch]:
        """Yield the batches of prompts with their seeds, which are the same in every repeat, run and batch size.

        Args:
            task: The task.
            warmup: Yield those of the warm-up prompts.

        Raises:
            PromptError: If the target cannot take some of the prompts; every line begins with the task's name.
        """
        try:
            prompts = self._targets.prompts(task, task.warmup if warmup else task.prompts)
        except PromptError as error:
            raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
        size = self._study.config.batch_size
        first = len(task.prompts) if warmup else 0  # seeds of their own
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            yield batch, [row_seed(task.generation.seed, first + start + n) for n in range(len(batch))]


def failure_text(error: BaseException) -> str:
    """Return why a run was abandoned; of an exception that nobody expected, with the line that raised it."""
    if isinstance(error, SpecdecError):
        return without_home(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{exception_text(error)}{place}"
