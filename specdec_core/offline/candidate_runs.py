"""The runs to try where no study names any: some drafters, or all that are installed, at several gammas.

Collections of models recommend settings of drafters for a target: `drafters.json` of the built-in models names the
drafters that come with each. Importing this imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_core.interface.controllers import MAX_GAMMA
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.registry import Registry, default_registry, drafter_settings, plugin_settings
from specdec_core.study import Study, load_study
from specdec_core.study.config.yaml_source import parse_value

if TYPE_CHECKING:
    from specdec_core.interface.spec import DrafterConfig
    from specdec_core.offline.record.format import Record, RecordPart

DrafterLike: TypeAlias = str | Mapping[str, Any]
"""A drafter: its name, or a mapping with `name` and settings."""
DEFAULT_GAMMAS: tuple[int, ...] = tuple(range(1, 9))
"""The gammas that each drafter is tried at."""
_RANGE = re.compile(r"(\d+)\s*(?:-|\.\.)\s*(\d+)")


def study_of_drafters(drafters: Iterable[DrafterLike], gammas: Iterable[Any] = DEFAULT_GAMMAS) -> dict[str, Any]:
    """Return a study in which every drafter is a run at every gamma, as a mapping of what its file would hold.

    Args:
        drafters: The drafters.
        gammas: What a run takes as `gamma`: numbers, names and mappings of controllers.
    """
    named = [dict(one) if isinstance(one, Mapping) else {"name": one} for one in drafters]
    grid = {"gamma": list(gammas)}
    return {"runs": [{**_run_name(one, named), "drafter": one, "grid": grid} for one in named]}


def _run_name(drafter: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of a run if its drafter's alone would not do: with the settings that tell it from others."""
    same = [one for one in others if one.get("name") == drafter.get("name")]
    differ = [key for key in drafter if any(one.get(key) != drafter[key] for one in same)]
    if len(same) == 1 or not differ:
        return {}
    return {"name": f"{drafter['name']}({', '.join(f'{key}={drafter[key]}' for key in differ)})"[:100]}


def gammas_of(texts: Sequence[str], option: str = "--gamma") -> list[Any]:
    """Return the gammas that an option names.

    Args:
        texts: A number, a range such as `1-8`, or a controller as in a study, each.
        option: The option, for messages.

    Raises:
        ConfigError: A range has no end, or none of these is given.
    """
    found: list[Any] = []
    for text in texts:
        if (ends := _RANGE.fullmatch(text.strip())) is None:
            found.append(parse_value(text, option))
            continue
        first, last = int(ends[1]), int(ends[2])
        if not first <= last <= MAX_GAMMA:
            raise ConfigError(
                f"{option}: {text!r} is not a range up to {MAX_GAMMA:,}; write the smaller first, as 1-8."
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found)) if all(isinstance(one, (int, str)) for one in found) else found


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
    drafters, left_out = default_drafters(record, settings, registry)
    return load_study({**_shared(record), **study_of_drafters(drafters)}, settings, registry), left_out


def default_drafters(
    record: Record,
    settings: Sequence[str] = (),
    registry: Registry | None = None,
    *,
    with_target: bool = True,
) -> tuple[list[DrafterLike], Mapping[str, str]]:
    """Return the installed drafters that can be tried on a record, and why the others cannot, by name.

    Args:
        record: The record.
        settings: Overrides in the form `key=value`, as passed to `--set`.
        registry: Where plugins come from; by default the installed ones.
        with_target: Whether to try drafters that work on the target, which is loaded for them.

    Raises:
        ConfigError: No drafter can be tried, or the settings are invalid.
    """
    registry = registry or default_registry()
    shared = _shared(record)
    known = drafter_settings(record.header.target.model)
    drafters: list[DrafterLike] = []
    left_out: dict[str, str] = {}
    for name in registry.names("drafter"):
        config = registry.drafter_config(name)
        if not with_target and (config.needs_model or config.needs_hidden_states):
            left_out[name] = "it works on the target; name it to try it."
            continue
        if reason := _without_target(record, config):
            left_out[name] = reason
            continue
        drafter = {"name": name, **known.get(name, {})}
        try:
            load_study({**shared, **study_of_drafters([drafter])}, settings, registry)
        except SpecdecError as error:
            left_out[name] = _reason(registry, drafter, error)
        else:
            drafters.append(drafter)
    if not drafters:
        reasons = "".join(f"\n{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"no installed drafter can be tried without settings; pass a study.{reasons}")
    return drafters, left_out


def _without_target(record: Record, config: type[DrafterConfig]) -> str | None:
    """Return why a drafter that works on the target cannot be tried; None if it can."""
    if config.needs_model and record.header.source is not None:
        return "it is made of the target's weights, which an imported record does not name."
    if config.needs_model or config.needs_hidden_states:
        try:
            record.check_named()
        except SpecdecError as error:
            return f"it works on the target. {error}"
    return None


def _reason(registry: Registry, drafter: Mapping[str, Any], error: SpecdecError) -> str:
    """Return why a drafter cannot be tried, in one line, without the keys of a study that nobody wrote."""
    try:
        plugin_settings(registry, "drafter", drafter)
    except ConfigError as own:
        error = own
    return str(error).partition("\n")[0].partition(": ")[2] or str(error)


def _shared(record: Record) -> dict[str, Any]:
    """Return the study of a record without its runs."""
    target = {"target": record.header.target.model_dump(mode="json", exclude_defaults=True)}
    tasks = [{"name": part.header.task, **_task(record, number)} for number, part in enumerate(record.parts)]
    if [task["name"] for task in tasks] == [None]:
        return {**target, **_task(record, 0)}
    return {**target, "tasks": tasks}


def _task(record: Record, number: int) -> dict[str, Any]:
    part = record.parts[number]
    settings = {"sampling": part.header.sampling, "generation": part.header.generation}
    plain = {key: value.model_dump(mode="json", exclude_defaults=True) for key, value in settings.items()}
    from specdec_core.offline.record.tasks import recorded_prompts  # imports numpy

    config = recorded_prompts(record, number)
    # A dataset or a benchmark may be on the hub, and the user has not named it.
    if config is None or config.dataset is not None or (config.benchmark is not None and config.path is None):
        return {**plain, "prompts": {"tokens": _token_ids(part)}}
    return {**plain, "prompts": config.model_dump(mode="json", exclude_defaults=True)}


def _token_ids(part: RecordPart) -> list[list[int]]:
    """Return the prompts of a part as token ids."""
    prompts = {text.number: list(text.prompt) for text in part}
    return [prompts[number] for number in sorted(prompts)]
