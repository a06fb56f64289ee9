"""Tuning: replay all runs of a study on its recorded texts, then time the best of them live."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_core.cluster import Pool, pooled
from specdec_core.decoding.arguments import make_controller
from specdec_core.interface import ConfigError, Progress
from specdec_core.interface.files import write_text_file
from specdec_core.offline.record.format import HEADER
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.record.store import read_record
from specdec_core.offline.replay.comparison import replay
from specdec_core.study import BASELINE, Comparison, Study, compare
from specdec_core.study.config.yaml_source import written_yaml
from specdec_core.study.report.verdict import fastest

_NOT_PATHS = frozenset({"name", "texts", "column", "columns", "template", "system", "split", "tasks"})
"""Keys of a study whose values are not paths, whatever is in its folder."""


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        replayed: The expected results of all runs.
        timed: The results of the best, timed live.
        best: The study of the fastest run of each task, as plain data.
        files: The files that were written, if there is an output folder.
    """

    replayed: Comparison
    timed: Comparison
    best: Mapping[str, Any]
    files: tuple[Path, ...] = ()


def tune(
    study: Study,
    progress: Progress,
    *,
    best: int = 4,
    tasks: Sequence[str] = (),
    output: Path | None = None,
    fresh: bool = False,
    ray: str | Pool | None = None,
) -> Tuning:
    """Find the fastest run of a study: record its target, replay all runs, and compare the best live.

    Args:
        study: Its runs are the candidates.
        progress: Where progress is reported.
        best: How many runs of each task are timed: those with the highest expected speed-up.
        tasks: Names of the tasks to tune; by default all.
        output: Folder for the record, the two results and the winning study, from which a stopped tuning resumes.
        fresh: Discard what an earlier tuning left in the folder.
        ray: Address of a Ray cluster, or an open pool, as for `compare`.

    Raises:
        ConfigError: No run of a task can be replayed, or none could be timed.
        SpecdecError: As for `compare` and `replay`.
    """
    chosen = replace(study, tasks=study.chosen(tasks))
    with ExitStack() as entered:
        folder = output or Path(entered.enter_context(tempfile.TemporaryDirectory(prefix="specdec-tune-")))
        pool = entered.enter_context(pooled(ray, progress))
        gammas = [make_controller("gamma", run.gamma) for task in chosen.tasks for run in task.runs[1:]]
        longest = max(1, *(gamma.max_gamma for gamma in gammas))
        where = folder / "record"
        # Replays resume with the same times only.
        times = read_record(where).header.times if (where / HEADER).is_file() and not fresh else None
        timed = times is not None and len(times.verify) > longest
        options = RecordOptions(gamma=None if timed else longest)
        record = record_study(chosen, where, progress, options, fresh=fresh, pool=pool)
        stored = (None, None) if output is None else (output / "replay", output / "live")
        replayed = replay(record, chosen, output=stored[0], fresh=fresh, ray=pool, progress=progress)
        finalists = {task.name: _fastest(replayed, task.name, best) for task in chosen.tasks}
        live = compare(_only(chosen, finalists), stored[1], fresh=fresh, ray=pool, progress=progress)
    # Where the verdict can rank no run, the one with the highest speed-up wins.
    ranked = {name: fastest([row for row in live.rows if row.task == name]) for name in finalists}
    winners = {name: runs[0].name if runs else _fastest(live, name, 1)[0] for name, runs in ranked.items()}
    data = _winning_study(study, winners)
    if output is None:
        return Tuning(replayed, live, data)
    write_text_file(file := output / "best.yaml", written_yaml(data))
    return Tuning(replayed, live, data, (file, *live.files))


def _fastest(found: Comparison, task: str | None, count: int) -> list[str]:
    """Return the runs of a task with the highest speed-ups, in descending order.

    Raises:
        ConfigError: No run has a speed-up.
    """
    rows = [row for row in found.to_dicts() if row["task"] == task and row["name"] != BASELINE]
    ranked = [row for row in rows if row["speedup"] is not None and row["status"] != "error"]
    if not ranked:
        raise ConfigError("\n".join((f"{task or 'the study'}: no run has a speed-up.", *found.errors)))
    return [row["name"] for row in sorted(ranked, key=lambda row: -row["speedup"])[:count]]


def _only(study: Study, names: Mapping[str | None, Sequence[str]]) -> Study:
    """Return the study with some runs of each task."""
    tasks = tuple(
        replace(task, runs=(task.runs[0], *(run for run in task.runs if run.name in names[task.name])))
        for task in study.tasks
    )
    kept = {name for each in names.values() for name in each}
    return replace(study, tasks=tasks, runs=tuple(run for run in study.runs if run.name in {BASELINE, *kept}))


def _winning_study(study: Study, winners: Mapping[str | None, str]) -> dict[str, Any]:
    """Return the study with the winning run of each task alone, as its YAML file would hold it."""
    data = study.config.model_dump(mode="json", exclude_unset=True, exclude={"runs", "tasks"})
    if study.config.tasks is not None:
        data["tasks"] = [
            {"name": task.name, **config.model_dump(mode="json", exclude_unset=True, exclude={"name", "grid"})}
            for task, config in zip(study.tasks, study.config.tasks, strict=True)
            if task.name in winners
        ]
    configs = {run.name: config for run, config in zip(study.runs[1:], study.config.runs, strict=True)}
    data["runs"] = []
    for name in dict.fromkeys(winners.values()):
        own = configs[name].model_dump(mode="json", exclude_unset=True, exclude={"name", "grid", "tasks"})
        tasks = [task for task, winner in winners.items() if winner == name]
        data["runs"].append({"name": name, **own, **({"tasks": tasks} if len(tasks) < len(winners) else {})})
    found: dict[str, Any] = _portable(data, study.folder.absolute())
    return found


def _portable(value: Any, folder: Path) -> Any:
    """Return settings with relative paths made absolute, and the name of each plugin before its settings."""
    if isinstance(value, dict):
        keys = dict.fromkeys(key for key in ("name", *value) if key in value)
        return {key: value[key] if key in _NOT_PATHS else _portable(value[key], folder) for key in keys}
    if isinstance(value, list):
        return [_portable(part, folder) for part in value]
    if isinstance(value, str) and value and os.path.exists(folder / value):  # noqa: PTH110  (a text may be no path)
        return str(folder / value)
    return value
