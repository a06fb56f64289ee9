"""Candidates where no study names any: every installed drafter that needs no settings, with gammas 1 to 8.

For the built-in targets, `builtin/drafters.json` has the settings of drafters that come with them. Importing this
imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.builtin import BUILTIN_DRAFTERS
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.registry import Registry, default_registry, plugin_settings
from specdec_core.study import Study, load_study

if TYPE_CHECKING:
    from specdec_core.record.record import Record, RecordPart

GAMMAS = tuple(range(1, 9))
"""The gammas of each drafter."""


def default_study(
    record: Record, settings: Sequence[str] = (), registry: Registry | None = None
) -> tuple[Study, Mapping[str, str]]:
    """Return a study of the installed drafters on what a record was made from.

    Args:
        record: The record, which gives target, prompts and settings.
        settings: Overrides in the form `key=value`, as passed to `--set`.
        registry: Where plugins come from; by default the installed ones.

    Returns:
        The study, and why each drafter that is not in it was left out, by name.

    Raises:
        ConfigError: No drafter is left, or the settings are invalid.
    """
    registry = registry or default_registry()
    shared = _shared(record)
    known = json.loads(BUILTIN_DRAFTERS.read_text(encoding="utf-8")).get(str(record.header.target["model"]), {})
    runs: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    imported = record.header.source is not None
    for name in registry.names("drafter"):
        if imported and registry.spec("drafter", name).capabilities.needs_model:
            left_out[name] = "it is made of the target's weights, which an imported record does not name."
            continue
        drafter = {"name": name, **known.get(name, {})}
        run = {"drafter": drafter, "grid": {"gamma": list(GAMMAS)}}
        try:
            load_study({**shared, "runs": [run]}, settings, registry)
        except SpecdecError as error:
            left_out[name] = _reason(registry, drafter, error)
        else:
            runs.append(run)
    if not runs:
        reasons = "".join(f"\n{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"no installed drafter can be tried without settings; pass a study.{reasons}")
    return load_study({**shared, "runs": runs}, settings, registry), left_out


def _reason(registry: Registry, drafter: Mapping[str, Any], error: SpecdecError) -> str:
    """Return why a drafter cannot be tried, in one line, without the keys of a study that nobody wrote."""
    try:
        plugin_settings(registry, "drafter", drafter)
    except ConfigError as own:
        error = own
    return str(error).partition("\n")[0].partition(": ")[2] or str(error)


def _shared(record: Record) -> dict[str, Any]:
    """Return the study of a record without its runs."""
    target = {"target": dict(record.header.target)}
    if [part.header.task for part in record.parts] == [None]:
        return {**target, **_task(record.parts[0])}
    return {**target, "tasks": [{"name": part.header.task, **_task(part)} for part in record.parts]}


def _task(part: RecordPart) -> dict[str, Any]:
    settings = {"sampling": part.header.sampling, "generation": part.header.generation}
    plain = {key: value.model_dump(mode="json", exclude_defaults=True) for key, value in settings.items()}
    return {**plain, "prompts": part.header.prompts.get("settings") or {"tokens": _token_ids(part)}}


def _token_ids(part: RecordPart) -> list[list[int]]:
    """Return the prompts of an imported record, which come from no study, as token ids."""
    prompts = {text.number: list(text.prompt) for text in part}
    return [prompts[number] for number in sorted(prompts)]
