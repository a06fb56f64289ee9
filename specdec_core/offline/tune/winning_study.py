"""The study file of the winning runs. Importing this imports no torch."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.interface.files import writing_file
from specdec_core.registry import is_shipped
from specdec_core.study import Study, load_study
from specdec_core.study.config.yaml_source import written_yaml

if TYPE_CHECKING:
    from specdec_core.study.config.schema import RunConfig

_NO_PATHS = frozenset({"name", "texts", "column", "columns", "template", "system", "split", "tasks"})
"""Keys whose values are not paths, whatever is in the folder."""
_COMMENT = 110
"""Width of the comment at the top."""
_MAX_NAME = 100
"""The longest name that a study may give."""


def folder_of(output: Path) -> Path:
    """Return the folder that belongs to a winning study."""
    return output.with_name(f"{output.stem}-tune")


def winning_study(study: Study, winners: Mapping[str | None, str], folder: Path) -> dict[str, Any]:
    """Return a study of the winning runs alone, as plain data that a YAML file can hold.

    Args:
        study: The study that holds them.
        winners: Name of the winning run of each task.
        folder: Where the file will be. Relative paths that lead somewhere from the folder of the study are
            rewritten to lead there from this one.
    """
    shared = study.config.model_dump(mode="json", exclude_unset=True, exclude={"runs", "tasks"})
    data = {key: _tidy(value) for key, value in shared.items()}
    named = [(task.name, winners[task.name]) for task in study.tasks if task.name in winners]
    if study.config.tasks is not None:
        configs = {task.name: config for task, config in zip(study.tasks, study.config.tasks, strict=True)}
        data["tasks"] = [
            {"name": str(name)[:_MAX_NAME]}
            | _tidy(configs[name].model_dump(mode="json", exclude_unset=True, exclude={"name", "grid"}))
            for name, _ in named
        ]
    runs = {run.name: config for run, config in zip(study.runs[1:], study.config.runs, strict=True)}
    data["runs"] = []
    for run in dict.fromkeys(run for _, run in named):
        tasks = [str(task)[:_MAX_NAME] for task, of_task in named if of_task == run]
        data["runs"].append(_run(run, runs[run], tasks if len(tasks) < len(named) else []))
    moved: dict[str, Any] = _moved(data, study.folder.absolute(), folder.absolute())
    return moved


def write_study(path: Path, data: Mapping[str, Any], comment: Sequence[str]) -> None:
    """Write a study, after checking that it can be read back.

    Args:
        path: The YAML file.
        data: What `winning_study` returned for its folder.
        comment: Paragraphs of the comment at its top.

    Raises:
        ConfigError: It cannot be written.
    """
    lines = [line for text in comment for line in textwrap.wrap(text, _COMMENT, break_on_hyphens=False)]
    head = "".join(f"# {line}\n" for line in lines)
    with writing_file(path) as temporary:
        temporary.write_text(head + written_yaml(data), encoding="utf-8")
    load_study(path)


def _run(name: str, config: RunConfig, tasks: Sequence[str]) -> dict[str, Any]:
    settings = _tidy(config.model_dump(mode="json", exclude_unset=True, exclude={"name", "grid", "tasks"}))
    given = {"name": name} if len(name) <= _MAX_NAME else {}
    return {**given, **settings, **({"tasks": list(tasks)} if tasks else {})}


def _tidy(value: Any) -> Any:
    """Return settings with the name of each plugin first."""
    if isinstance(value, Mapping):
        ordered = {key: value[key] for key in ("name", *value) if key in value}
        return {key: _tidy(part) for key, part in ordered.items()}
    return [_tidy(part) for part in value] if isinstance(value, (list, tuple)) else value


def _moved(value: Any, before: Path, after: Path) -> Any:
    """Return settings in which relative paths that lead somewhere from one folder lead there from another."""
    if before == after:
        return value
    if isinstance(value, Mapping):
        return {key: part if key in _NO_PATHS else _moved(part, before, after) for key, part in value.items()}
    if isinstance(value, list):
        return [_moved(part, before, after) for part in value]
    if not isinstance(value, str) or not value or value.startswith("~") or is_shipped(value):
        return value
    try:
        there = not Path(value).is_absolute() and (before / value).exists()
    except (OSError, ValueError):  # a text that is not a path
        return value
    return Path(os.path.relpath(before / value, after)).as_posix() if there else value
