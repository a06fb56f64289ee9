"""Candidates where no study names any: every installed drafter that needs no settings, with gammas 1 to 8.

Collections of models recommend settings of drafters for a target: `drafters.json` of the built-in models names the
drafters that come with each. Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.registry import Registry, default_registry, drafter_settings, plugin_settings
from specdec_core.study import Study, load_study
from specdec_core.study.config.recorded import recorded_prompts

if TYPE_CHECKING:
    from specdec_core.interface.spec import Capabilities
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
    known = drafter_settings(record.header.target.model)
    runs: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for name in registry.names("drafter"):
        if reason := _without_target(record, registry.spec("drafter", name).capabilities):
            left_out[name] = reason
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


def _without_target(record: Record, capabilities: Capabilities) -> str | None:
    """Return why a drafter that works on the target cannot be tried; None if it can."""
    if capabilities.needs_model and record.header.source is not None:
        return "it is made of the target's weights, which an imported record does not name."
    if capabilities.needs_model or capabilities.needs_hidden_states:
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
    config = recorded_prompts(record, number)
    # A dataset may be on the hub, and the user has not named it.
    if config is None or config.dataset is not None:
        return {**plain, "prompts": {"tokens": _token_ids(part)}}
    return {**plain, "prompts": config.model_dump(mode="json", exclude_defaults=True)}


def _token_ids(part: RecordPart) -> list[list[int]]:
    """Return the prompts of a part as token ids."""
    prompts = {text.number: list(text.prompt) for text in part}
    return [prompts[number] for number in sorted(prompts)]
