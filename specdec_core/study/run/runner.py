"""Running a study: each run is loaded and warmed up once, then the runs of a task take turns, in random order.

Taking turns spreads drift of the machine, such as throttling, evenly over the runs. The order is shuffled in every
repeat, the baseline included, so that no run always profits from its predecessor or from being the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, TypeAlias

from specdec_core.decoding import Decoder, Metrics, PluginFailure, Prompt
from specdec_core.interface import PluginWarning, TrainingObserver
from specdec_core.interface.errors import PromptError, SpecdecError
from specdec_core.models import LoadedModel
from specdec_core.models.packing import describe_hardware
from specdec_core.registry import Registry, default_registry
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.schema import TargetConfig
from specdec_core.study.config.study import BASELINE, Run, Study, Task, with_task
from specdec_core.study.report.quality import Output
from specdec_core.study.run.factory import load_target, make_decoder, ready_prompts
from specdec_core.study.run.folder import StorageError, exclusive_lock
from specdec_core.study.run.journal import Journal, Repeat
from specdec_core.study.run.provenance import study_provenance
from specdec_core.theory.intervals import relative_spread

_WARM_UP_TOKENS = 8

RunKey: TypeAlias = tuple[str | None, str]
"""Names of a task and of a run."""
RepeatKey: TypeAlias = tuple[str | None, str, int]
"""Names of a task and of a run, and the number of a repeat, from 1."""
_Batch: TypeAlias = tuple[Sequence[Prompt], Sequence[int]]
"""Prompts that are decoded together, and their seeds."""


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
    repeats: Mapping[RepeatKey, Repeat]
    failed: Mapping[RunKey, str]
    provenance: Mapping[str, Any]

    def of_run(self, task: Task, run: str) -> dict[int, Repeat]:
        """Return the finished repeats of a run, by number."""
        found = {key[2]: one for key, one in self.repeats.items() if key[:2] == (task.name, run)}
        return dict(sorted(found.items()))


def run_study(
    study: Study,
    observer: TrainingObserver,
    *,
    output: Path | None = None,
    fresh: bool = False,
    registry: Registry | None = None,
) -> StudyResult:
    """Run a study, or resume one that was stopped.

    Args:
        study: The study to run.
        observer: Receives the progress.
        output: Folder that stores finished repeats; without it, a stopped study cannot be resumed.
        fresh: Discard what an earlier study left in the folder.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: If a target cannot be loaded or cannot decode its prompts, if the folder holds the results of
            another study, or if another study is running there. Any other failing run is recorded in the result,
            and the others continue.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    registry = registry or default_registry()
    targets = _Targets(study.folder, observer)
    with exclusive_lock(output) if output is not None else nullcontext():
        provenance = study_provenance(study, describe_hardware(targets.of(study.tasks[0])), registry)
        journal = Journal(output, provenance, fresh=fresh) if output is not None else None
        session = _Session(study, targets, registry, observer, journal)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PluginWarning)  # the result reports failures of plugins
                session.run()
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt(session.stopped(output)) from stopped
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


class _Targets:
    """The targets of a study's tasks, one of them in memory at a time."""

    def __init__(self, folder: Path, observer: TrainingObserver) -> None:
        self._folder = folder
        self._observer = observer
        self._loaded: tuple[TargetConfig, LoadedModel] | None = None

    def of(self, task: Task) -> LoadedModel:
        if self._loaded is None or self._loaded[0] != task.target:
            self._loaded = None  # frees memory before the next target is loaded
            self._observer.stage(f"loading {task.target.model}")
            self._loaded = (task.target, load_target(task.target, self._folder))
        return self._loaded[1]


class _Session:
    """The state of a running study."""

    def __init__(
        self,
        study: Study,
        targets: _Targets,
        registry: Registry,
        observer: TrainingObserver,
        journal: Journal | None,
    ) -> None:
        self._study = study
        self._targets = targets
        self._registry = registry
        self._observer = observer
        self._journal = journal
        self._decoders: dict[str, Decoder] = {}
        repeats = study.config.repeats
        self._total = sum(len(task.runs) for task in study.tasks) * repeats.max
        self._most = "" if repeats.min == repeats.max else "at most "
        self.finished: dict[RepeatKey, Repeat] = dict(journal.finished) if journal else {}
        self.failed: dict[RunKey, str] = {}

    def run(self) -> None:
        if self.finished:
            self._observer.measured({"repeats": self._total, "finished before": len(self.finished)})
        unfinished = [task for task in self._study.tasks if next(self._todo(task), None) is not None]
        for _, tasks in groupby(unfinished, key=lambda task: task.target):
            # The prompts of all tasks with this target are checked before the first task takes its time.
            ready = [(task, list(self._batches(task))) for task in tasks]
            for task, batches in ready:
                self._run_task(task, batches)
                self._decoders.clear()

    def stopped(self, output: Path | None) -> str:
        """Return what Ctrl-C leaves behind, and the runs that failed before it."""
        stored = (
            "stopped; nothing was stored. With --output DIR, a stopped study can be resumed."
            if output is None
            else f"stopped; {len(self.finished)} of {self._most}{self._total} repeats are stored in {output}. "
            "Run the same command again to resume."
        )
        return "\n".join([*failure_lines(self.failed), stored])

    def _todo(self, task: Task) -> Iterator[tuple[Run, int]]:
        """Yield the unfinished repeats of a task in the order in which the runs take turns, until they suffice."""
        repeats = self._study.config.repeats
        for number in range(1, repeats.max + 1):
            if number > repeats.min and self._settled(task, number - 1):
                return
            yield from ((run, number) for run in turns(task, number) if not self._done(task, run, number))

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

    def _run_task(self, task: Task, batches: Sequence[_Batch]) -> None:
        target = self._targets.of(task)
        # All runs are loaded before the first is timed, so that memory is the same in every repeat.
        last = self._study.config.repeats.max
        runs = [run for run in task.runs if any(not self._done(task, run, n) for n in range(1, last + 1))]
        self._observer.stage(task.with_task("loading drafters and warming up"), len(runs))
        for done, run in enumerate(runs):
            self._observer.advance(done, run.name)
            self._attempt(task, run, partial(self._prepare, task, run, target, batches[0][0]))
        self._observer.stage(task.with_task("timing"), self._total)
        self._observer.advance(len(self.finished))
        for run, number in self._todo(task):
            self._attempt(task, run, partial(self._measure, task, run, number, batches))

    def _attempt(self, task: Task, run: Run, action: Callable[[], None]) -> None:
        try:
            action()
        except SpecdecError as error:
            if run.drafter is None or isinstance(error, StorageError):
                raise  # there is nothing to compare without a baseline, and nowhere to store results
            self.failed[task.name, run.name] = str(error)

    def _prepare(self, task: Task, run: Run, target: LoadedModel, prompts: Sequence[Prompt]) -> None:
        decoder = make_decoder(
            target,
            run,
            registry=self._registry,
            sampling=task.sampling,
            batch_size=self._study.config.batch_size,
            folder=self._study.folder,
            plugin_timeout=self._study.plugin_timeout,
        )
        short = min(_WARM_UP_TOKENS, task.generation.max_new_tokens)
        decoder.generate(prompts, task.generation.model_copy(update={"max_new_tokens": short}))
        self._decoders[run.name] = decoder

    def _measure(self, task: Task, run: Run, number: int, batches: Sequence[_Batch]) -> None:
        metrics = Metrics()
        cpu_seconds = 0.0
        failures: list[PluginFailure] = []
        outputs: list[Output] = []
        for done, (prompts, seeds) in enumerate(batches):
            if done:
                part = len(self.finished) + done / len(batches)
                self._observer.advance(part, f"{run.name}, repeat {number}")
            before = thread_time()
            result = self._decoders[run.name].generate(prompts, task.generation, seeds=seeds)
            cpu_seconds += thread_time() - before
            metrics += result.metrics
            failures += result.failures
            outputs += [Output(one.tokens, one.text) for one in result.sequences]
        target = self._targets.of(task)
        repeat = Repeat(
            *(task.name, run.name, number, metrics, tuple(failures), tuple(outputs)),
            device=describe_hardware(target),
            turn=turns(task, number).index(run) + 1,
            # Elsewhere the thread sleeps while the device computes.
            cpu_seconds=cpu_seconds if target.device.type == "cpu" else None,
        )
        if self._journal is not None:
            self._journal.add(repeat)
        self.finished[repeat.key] = repeat
        note = f"{run.name}, repeat {number}: {metrics.tokens_per_second:.1f} tokens/s"
        self._observer.advance(len(self.finished), note)

    def _batches(self, task: Task) -> Iterator[_Batch]:
        """Yield the batches of prompts with their seeds, which are the same in every repeat, run and batch size.

        Raises:
            PromptError: If the target cannot take some of the prompts; every line begins with the task's name.
        """
        try:
            prompts = ready_prompts(self._targets.of(task), task.prompts, task.chat_template)
        except PromptError as error:
            raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
        size = self._study.config.batch_size
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            yield batch, [row_seed(task.generation.seed, start + n) for n in range(len(batch))]
