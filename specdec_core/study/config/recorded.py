"""The tasks of a record, and the study that some drafters and gammas make. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from specdec_core.interface.controllers import MAX_GAMMA
from specdec_core.interface.errors import ConfigError
from specdec_core.registry import Registry
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.config.study import Task

if TYPE_CHECKING:
    from specdec_core.interface import PluginConfig
    from specdec_core.interface.settings import SamplingSettings
    from specdec_core.record.record import Record

DrafterLike: TypeAlias = str | Mapping[str, Any]
"""A drafter: its name, or a mapping with `name` and settings."""
DEFAULT_GAMMAS: tuple[int, ...] = tuple(range(1, 9))
"""The gammas that a drafter is replayed at."""
_RANGE = re.compile(r"(\d+)\s*(?:-|\.\.)\s*(\d+)")


def recorded_tasks(record: Record) -> tuple[Task, ...]:
    """Return the tasks of a record, without runs.

    Prompts are token ids, as the target read them.
    """
    return tuple(_task(record, number) for number in range(len(record.parts)))


def named_models(tasks: Iterable[Task]) -> frozenset[str]:
    """Return the models that the targets of a user's tasks name: they may be loaded from the hub."""
    return frozenset().union(*(task.target.names() for task in tasks))


def recorded_prompts(record: Record, number: int) -> PromptsConfig | None:
    """Return where the prompts of a part came from; None for imported texts.

    Args:
        record: The record.
        number: Number of the part.

    Raises:
        ConfigError: The record says it in another way than a study does.
    """
    # Here, since these import numpy, and commands that read no record do not.
    from specdec_core.record.damage import validated
    from specdec_core.record.reader import HEADER

    settings = record.parts[number].header.prompts.settings
    if settings is None:
        return None
    where = f"parts.{number}.prompts.settings"
    return validated(PromptsConfig, json.dumps(settings), record.path / HEADER, where)


def _task(record: Record, number: int) -> Task:
    part = record.parts[number]
    header = part.header
    prompts = {text.number: text.prompt for text in part}
    texts = tuple(PromptText(str(number + 1), None, tokens=prompt) for number, prompt in sorted(prompts.items()))
    return Task(
        name=header.task,
        target=record.header.target,
        prompts_config=recorded_prompts(record, number) or PromptsConfig(tokens=tuple(prompts.values())),
        prompts=texts,
        chat_template=None,
        sampling=header.sampling,
        generation=header.generation,
        runs=(),
    )


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


def drafters_without_settings(registry: Registry) -> tuple[list[str], list[str]]:
    """Return the names of the installed drafters that need neither settings nor the target, and of the others."""
    ready = [one.name for one in registry.records() if one.kind == "drafter" and one.state == "ready"]
    needy = [name for name in ready if _needs_more(registry, name)]
    return [name for name in ready if name not in needy], needy


def _needs_more(registry: Registry, name: str) -> bool:
    spec = registry.spec("drafter", name)
    if spec.capabilities.needs_model:
        return True
    try:
        spec.config()
    except ValidationError:
        return True
    return False


def drafter_key(drafter: PluginConfig | None, draft_sampling: SamplingSettings | None) -> str:
    """Return what tells a drafter from others: its settings, and those of its sampling."""
    own = {} if drafter is None else drafter.model_dump(mode="json")
    return settings_key(own, None if draft_sampling is None else draft_sampling.model_dump(mode="json"))


def settings_key(drafter: Mapping[str, Any], draft_sampling: Mapping[str, Any] | None) -> str:
    """Return the same for settings that are plain data."""
    return json.dumps([drafter, draft_sampling], sort_keys=True)


def gammas_of(texts: Sequence[str], option: str = "--gamma") -> list[Any]:
    """Return the gammas that an option names.

    Args:
        texts: A number, a range such as `1-8`, or a controller as in a study, each.
        option: The option, for messages.

    Raises:
        ConfigError: A range has no end, or none of these is given.
    """
    from specdec_core.study.config.yaml_source import parse_value

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
