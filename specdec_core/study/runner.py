"""Running a study: every run is loaded once, warmed up once, and timed in turns with the others of its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from specdec_core.decoding import Decoder, Metrics, Prompt
from specdec_core.errors import ConfigError, PromptError, SpecdecError
from specdec_core.models import LoadedModel
from specdec_core.randomness import row_seed
from specdec_core.registry import Registry, default_registry
from specdec_core.study.config import TargetConfig
from specdec_core.study.identity import describe_device, describe_study
from specdec_core.study.journal import Journal, Output, Repeat, StorageError
from specdec_core.study.lock import only_one
from specdec_core.study.making import load_target, make_decoder, ready_prompts
from specdec_core.study.study import Run, Study, Task

_WARM_UP_TOKENS = 8

RunKey: TypeAlias = tuple[str | None, str]
"""Names of a task and of a run."""
RepeatKey: TypeAlias = tuple[str | None, str, int]
"""Names of a task and of a run, and the number of a repeat, from 1."""


class StudyObserver(Protocol):
    """Is told how a study goes on; for progress on a terminal."""

    def began(self, repeats: int, finished: int) -> None:
        """A study of so many repeats begins; so many were finished before."""

    def loading(self, what: str) -> None:
        """A model or a drafter is being loaded."""

    def measuring(self, run: str, repeat: int) -> None:
        """A repeat begins."""

    def measured(self, run: str, repeat: int, tokens_per_second: float) -> None:
        """A repeat is finished and noted."""

    def failed(self, run: str, reason: str) -> None:
        """A run is given up; the others go on."""


@dataclass(frozen=True)
class StudyResult:
    """What a study measured.

    Attributes:
        study: The study.
        repeats: Every finished repeat.
        failed: Why runs were given up.
        identity: Settings, versions and device, as plain data.
    """

    study: Study
    repeats: Mapping[RepeatKey, Repeat]
    failed: Mapping[RunKey, str]
    identity: Mapping[str, Any]

    def of_run(self, task: Task, run: str) -> dict[int, Repeat]:
        """Return the finished repeats of a run, by number."""
        found = {key[2]: one for key, one in self.repeats.items() if key[:2] == (task.name, run)}
        return dict(sorted(found.items()))


def run_study(
    study: Study,
    observer: StudyObserver,
    *,
    output: Path | None = None,
    fresh: bool = False,
    registry: Registry | None = None,
) -> StudyResult:
    """Run a study, or the rest of one that was stopped.

    Args:
        study: What to run.
        observer: Is told how it goes on.
        output: Folder that keeps finished repeats; without one, nothing can be resumed.
        fresh: Forget what an earlier study left in the folder.
        registry: Where plugins come from; by default those installed.

    Raises:
        SpecdecError: When a target cannot be loaded or decode its prompts, or results cannot be kept beside
            what the folder holds, or another study is running there. What goes wrong in another run is noted in
            the result, and the others go on.
    """
    registry = registry or default_registry()
    targets = _Targets(study.folder, observer)
    with only_one(output) if output is not None else nullcontext():
        identity = describe_study(study, targets.of(study.tasks[0]).device, registry)
        journal = Journal(output, identity, fresh=fresh) if output is not None else None
        if journal is not None:
            _check_counters(journal)
        session = _Session(study, targets, registry, observer, journal)
        session.run()
    return StudyResult(study, session.finished, session.failed, identity)


def _check_counters(journal: Journal) -> None:
    """Refuse repeats in which another version counted something else, before any time is spent beside them."""
    for repeat in journal.finished.values():
        try:
            Metrics.from_plain(repeat.metrics)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{journal.path} was written by another version of specdec, whose counters differ: {error}. "
                "Choose another --output, or pass --fresh to begin again there."
            ) from error


class _Targets:
    """The targets of a study's tasks, one of them in memory at a time."""

    def __init__(self, folder: Path, observer: StudyObserver) -> None:
        self._folder = folder
        self._observer = observer
        self._kept: tuple[TargetConfig, LoadedModel] | None = None

    def of(self, task: Task) -> LoadedModel:
        if self._kept is None or self._kept[0] != task.target:
            self._kept = None  # frees the memory that the next one may need
            self._observer.loading(task.target.model)
            self._kept = (task.target, load_target(task.target, self._folder))
        return self._kept[1]


class _Session:
    """A study while it runs."""

    def __init__(
        self,
        study: Study,
        targets: _Targets,
        registry: Registry,
        observer: StudyObserver,
        journal: Journal | None,
    ) -> None:
        self._study = study
        self._targets = targets
        self._registry = registry
        self._observer = observer
        self._journal = journal
        self._decoders: dict[str, Decoder] = {}
        self.finished: dict[RepeatKey, Repeat] = dict(journal.finished) if journal else {}
        self.failed: dict[RunKey, str] = {}

    def run(self) -> None:
        todo = {task.name: self._todo(task) for task in self._study.tasks}
        total = sum(len(task.runs) for task in self._study.tasks) * self._study.config.repeats
        self._observer.began(total, total - sum(map(len, todo.values())))
        unfinished = [task for task in self._study.tasks if todo[task.name]]
        for _, tasks in groupby(unfinished, key=lambda task: task.target):
            # The prompts of all tasks of a target are checked before the first of them takes its time.
            ready = [(task, list(self._batches(task))) for task in tasks]
            for task, batches in ready:
                self._run_task(task, todo[task.name], batches)
                self._decoders.clear()

    def _todo(self, task: Task) -> list[tuple[Run, int]]:
        """Return what of a task is not finished, in the order in which runs take turns."""
        repeats = range(1, self._study.config.repeats + 1)
        return [(run, n) for n in repeats for run in task.runs if (task.name, run.name, n) not in self.finished]

    def _run_task(self, task: Task, todo: Sequence[tuple[Run, int]], batches: Sequence[_Batch]) -> None:
        target = self._targets.of(task)
        # All are loaded before the first is timed, so that every repeat meets the same memory.
        for run in dict.fromkeys(run for run, _ in todo):
            self._attempt(task, run, partial(self._prepare, task, run, target, batches[0][0]))
        for run, number in todo:
            if (task.name, run.name) not in self.failed:
                self._attempt(task, run, partial(self._measure, task, run, number, batches))

    def _attempt(self, task: Task, run: Run, action: Callable[[], None]) -> None:
        try:
            action()
        except SpecdecError as error:
            if run.drafter is None or isinstance(error, StorageError):
                raise  # without a baseline, or a place for results, there is nothing to compare
            self.failed[task.name, run.name] = str(error)
            self._observer.failed(task.titled(run.name), str(error))

    def _prepare(self, task: Task, run: Run, target: LoadedModel, prompts: Sequence[Prompt]) -> None:
        self._observer.loading(task.titled(run.name))
        decoder = make_decoder(
            target,
            run,
            registry=self._registry,
            sampling=task.sampling,
            batch_size=self._study.config.batch_size,
            folder=self._study.folder,
        )
        short = min(_WARM_UP_TOKENS, task.generation.max_new_tokens)
        decoder.generate(prompts, task.generation.model_copy(update={"max_new_tokens": short}))
        self._decoders[run.name] = decoder

    def _measure(self, task: Task, run: Run, number: int, batches: Sequence[_Batch]) -> None:
        self._observer.measuring(task.titled(run.name), number)
        metrics = Metrics()
        failures: list[Mapping[str, Any]] = []
        outputs: list[Output] = []
        for prompts, seeds in batches:
            result = self._decoders[run.name].generate(prompts, task.generation, seeds=seeds)
            metrics += result.metrics
            failures += [asdict(failure) for failure in result.failures]
            outputs += [Output(one.tokens, one.text) for one in result.rows]
        device = describe_device(self._targets.of(task).device)
        repeat = Repeat(task.name, run.name, number, asdict(metrics), tuple(failures), tuple(outputs), device)
        if self._journal is not None:
            self._journal.add(repeat)
        self.finished[task.name, run.name, number] = repeat
        self._observer.measured(task.titled(run.name), number, metrics.tokens_per_second)

    def _batches(self, task: Task) -> Iterator[_Batch]:
        """Yield the prompts in batches, and the seed of each: the same in every repeat, run and batch size.

        Raises:
            PromptError: The target cannot take some prompts; each line begins with the name of the task.
        """
        try:
            prompts = ready_prompts(self._targets.of(task), task.prompts, task.chat_template)
        except PromptError as error:
            raise PromptError("\n".join(map(task.titled, str(error).splitlines()))) from error
        size = self._study.config.batch_size
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            yield batch, [row_seed(task.generation.seed, start + n) for n in range(len(batch))]


_Batch: TypeAlias = tuple[Sequence[Prompt], Sequence[int]]
"""Prompts that are decoded together, and their seeds."""
