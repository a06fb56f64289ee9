"""Replaying a study or drafters on a record, from Python. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.cluster import Pool, pooled
from specdec_core.interface.errors import ArgumentError, ConfigError
from specdec_core.offline.candidate_runs import DEFAULT_GAMMAS, DrafterLike, study_of_drafters
from specdec_core.offline.record.tasks import named_models, part_for, recorded_tasks
from specdec_core.registry.registry import default_registry
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.study.comparison import Comparison, StudyLike, hold
from specdec_core.study.config.loader import MAX_RUNS, load_study
from specdec_core.study.config.study import Study, Task

if TYPE_CHECKING:
    from specdec_core.costs.step_costs import Machine
    from specdec_core.interface import Progress
    from specdec_core.interface.settings import TargetConfig
    from specdec_core.offline.record.format import Record, RecordPart
    from specdec_core.study.run.study_session import StudyResult

_STUDY_FILES = (".yaml", ".yml")


def replay(
    record: Record | Path | str,
    what: StudyLike | DrafterLike | Sequence[DrafterLike],
    *,
    target: TargetConfig | None = None,
    gammas: Sequence[Any] = DEFAULT_GAMMAS,
    machines: Sequence[Machine] = (),
    output: Path | str | None = None,
    settings: Sequence[str] = (),
    fresh: bool = False,
    max_runs: int = MAX_RUNS,
    ray: str | Pool | None = None,
    progress: bool | Progress = True,
) -> Comparison:
    """Replay a study or drafters on a record: what they would have done on the target's texts, without the target.

    `specdec replay` does the same. Acceptance is the exact expectation given the texts, for every gamma from one
    pass of each drafter; seconds are expected on a machine. The result is that of `compare`, marked as replayed.

    Args:
        record: The record, or its path or name.
        what: A study, as `compare` takes it: its tasks must be among those that were recorded, unless it says
            nothing but its `runs`. Or one or more drafters, each a name or a mapping with `name` and settings.
        target: The record's target, for drafters that work on it: one of the hub is loaded only if it is named,
            here or by the study.
        gammas: With drafters: what a run takes as `gamma`. Every drafter is a run at each of them.
        machines: Machines whose seconds are expected, each with its own tables; by default the one that
            recorded, if its T(k) was recorded, with the time of the drafters here.
        output: As for `compare`.
        settings: Overrides of the study in the form `key=value`, as passed to `--set`.
        fresh: As for `compare`.
        max_runs: The most runs of the study.
        ray: Address of a Ray cluster whose workers ask the drafters, as for `compare`; None for this process.
        progress: As for `compare`.

    Raises:
        ArgumentError: `what` is none of these.
        SpecdecError: The study is invalid, the record is none or does not suit it, or the folder cannot be used. A
            run that cannot be replayed is in the result with the reason, and the others continue.
    """
    from specdec_core.offline.record.format import Record
    from specdec_core.offline.record.store import read_record

    found = record if isinstance(record, Record) else read_record(record)
    found = found if target is None else found.naming(target)
    tasks = () if isinstance(what, Study) else recorded_tasks(found)
    study = what if isinstance(what, Study) else _study(what, gammas, settings, max_runs, tasks)
    parts = [_part(found, tasks, task) for task in study.tasks]
    own = [task for task in study.tasks if all(task.target is not one.target for one in tasks)]
    found = replace(found, named=found.named | named_models(own))

    def run(progress: Progress, folder: Path | None) -> StudyResult:
        from specdec_core.offline.replay.study_replay import replay_study

        with pooled(ray, progress) as pool:
            return replay_study(
                study,
                found,
                parts,
                progress,
                name=str(found.path) if isinstance(record, Record) else str(record),
                machines=machines,
                output=folder,
                fresh=fresh,
                pool=pool,
            )

    return hold(run, output, progress)


def _study(
    what: StudyLike | DrafterLike | Sequence[DrafterLike],
    gammas: Sequence[Any],
    settings: Sequence[str],
    max_runs: int,
    tasks: Sequence[Task],
) -> Study:
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(_STUDY_FILES)):
        return load_study(Path(what), settings, max_runs=max_runs, recorded=tasks)
    if isinstance(what, Mapping) and "name" not in what:
        return load_study(what, settings, max_runs=max_runs, recorded=tasks)
    drafters = [what] if isinstance(what, (str, Mapping)) else what
    if not isinstance(drafters, Sequence) or not all(isinstance(one, (str, Mapping)) for one in drafters):
        raise ArgumentError(
            f"what: an object of type {type(what).__name__} was given; pass a study, or drafters: names, or "
            "mappings with `name` and settings."
        )
    try:
        study = load_study(study_of_drafters(drafters, gammas), settings, max_runs=max_runs, recorded=tasks)
    except ConfigError:
        for one in drafters:
            plugin_settings(default_registry(), "drafter", one)  # names a drafter, and no run that nobody wrote
        raise
    return replace(study, path=Path("replay"))


def _part(record: Record, tasks: Sequence[Task], task: Task) -> RecordPart:
    """Return what a task is replayed on: the part that it was made of, or one that has its settings."""
    made_of = (part for own, part in zip(tasks, record.parts, strict=False) if own.prompts is task.prompts)
    part = next(made_of, None)
    return part_for(record, task) if part is None else part
