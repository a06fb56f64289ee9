"""Checks of runs against the tasks that compare them: requirements, rules, losslessness and beam search."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from specdec_core.interface.run import RunSettings
from specdec_core.models.load.model_requirements import unmet_requirements
from specdec_core.models.load.resolve import has_encoder
from specdec_core.models.load.vocabulary import local_vocabulary
from specdec_core.registry.nesting import Keys
from specdec_core.registry.registry import Registry
from specdec_core.registry.requirements import TargetFacts
from specdec_core.study.config.schema import StudyConfig
from specdec_core.study.config.study import BASELINE, Run, Task


class Problem(NamedTuple):
    """A setting that does not work.

    Attributes:
        keys: Its keys in the study, with grids expanded.
        text: What is wrong.
        about: The beginning of the message, unless an option begins it.
    """

    keys: Keys
    text: str
    about: str = ""


def run_problems(
    config: StudyConfig, runs: Sequence[Run], tasks: Sequence[Task], registry: Registry, folder: Path
) -> Iterator[Problem]:
    """Yield the problems of runs in the tasks that compare them.

    Args:
        config: The study.
        runs: Its runs without the baseline.
        tasks: Its tasks.
        registry: The plugins that it may name.
        folder: Base for relative paths.
    """
    by_name: dict[str, list[Task]] = {run.name: [] for run in (Run(name=BASELINE), *runs)}
    for task in tasks:
        for run in task.runs:
            by_name[run.name].append(task)
    compared = [(index, run, by_name[run.name]) for index, run in enumerate(runs)]
    yield from _requirements(compared, registry, folder)
    yield from _rules(compared)
    if config.lossless:
        yield from _lossy(compared)
    yield from _generations(config, compared, tasks)
    yield from _engines(config, compared, tasks)


_Compared: TypeAlias = Sequence[tuple[int, Run, Sequence[Task]]]
"""Each run with its number and the tasks that compare it."""


def _requirements(compared: _Compared, registry: Registry, folder: Path) -> Iterator[Problem]:
    """Yield unmet requirements of drafters, with the tasks if only some are affected."""
    targets = {task.name: task.target for _, _, tasks in compared for task in tasks}
    known = {
        name: (
            TargetFacts(has_encoder(target.model, folder, target.subfolder)),
            local_vocabulary(target.model, folder, target.subfolder),
        )
        for name, target in targets.items()
    }
    for index, run, tasks in compared:
        found: dict[tuple[Keys, str], list[Task]] = {}
        for task in tasks if run.drafter is not None else ():
            facts, words = known[task.name]
            drafter = cast("Any", run.drafter)
            for keys, error in unmet_requirements(registry, drafter, facts, vocabulary=words, folder=folder):
                found.setdefault((keys, str(error)), []).append(task)
        for (keys, problem), affected in found.items():
            where = "" if len(affected) == len(tasks) else _in_tasks(affected)
            yield Problem(("runs", index, "drafter", *keys), where + problem)


def _rules(compared: _Compared) -> Iterator[Problem]:
    """Yield acceptance rules that work neither at a task's temperature nor with a run's lenience."""
    for index, run, tasks in compared:
        if run.rule is not None:
            sampled = [task for task in tasks if not task.sampling.greedy]
            for setting, problem in run.problems(greedy=not sampled):
                if setting in ("temperature", "lenience"):
                    where = _in_tasks(sampled) if setting == "temperature" else ""
                    yield Problem(("runs", index, "rule"), where + problem)


def _lossy(compared: _Compared) -> Iterator[Problem]:
    """Yield runs that may change the target's distribution."""
    for index, run, tasks in compared:
        lossy = [task for task in tasks if not run.lossless_for(task.sampling)]
        if run.lenient:
            yield Problem(
                ("runs", index, "lenience"),
                f"the lenience of run {run.name!r} may be below 1, but the study requires `lossless: true`; "
                "remove the lenience, or set `lossless: false`.",
            )
        elif lossy:
            yield Problem(
                ("runs", index, "rule"),
                f"{_in_tasks(lossy)}the rule {run.labels.rule!r} of run {run.name!r} is lossy, but the study "
                "requires `lossless: true`; choose a lossless rule such as 'token', or set `lossless: false`.",
            )


def _generations(config: StudyConfig, compared: _Compared, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Yield settings that do not go together with how a task generates."""
    for index, task in enumerate(tasks):
        for name, problem in RunSettings().generation_problems(task.sampling, task.generation):
            part = "sampling" if name == "temperature" else "generation"
            written = config.tasks is not None and getattr(config.tasks[index], part) is not None
            keys: Keys = ("tasks", index, part, name) if written else (part, name)
            yield Problem(keys, problem, f"{_in_tasks([task])}{part}.{name}: ")
    for index, run, own in compared:
        for task in own:
            for name, problem in run.generation_problems(task.sampling, task.generation):
                if name in RunSettings.model_fields:
                    yield Problem(("runs", index, name), problem, f"{_in_tasks([task])}{name}: ")


def _engines(config: StudyConfig, compared: _Compared, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Yield settings that an engine does not take."""
    served: list[tuple[Keys, Sequence[Task]]] = [(("baseline",), tasks)] if config.baseline is not None else []
    for index, run, own in compared:
        if run.engine is None:
            continue
        served.append((("runs", index), own))
        for name in ("lenience", "rule", "draft_sampling", "draft_beams"):
            if getattr(run, name) is not None:
                yield Problem(
                    ("runs", index, name), f"{name}: a server is not told; start it with the setting instead."
                )
    for keys, own in served:
        for task in own:
            if task.generation.constraint is not None or task.generation.beams > 1:
                what = "beams" if task.generation.beams > 1 else "constraint"
                where = _in_tasks([task])
                yield Problem((*keys, "engine"), f"{where}engine: a server is sent no {what}; remove one of them.")


def _in_tasks(tasks: Sequence[Task]) -> str:
    """Return the beginning of a message about some tasks; nothing if the study has no `tasks`."""
    names = [repr(task.name) for task in tasks if task.name is not None]
    return f"in task {', '.join(names)}: " if names else ""
