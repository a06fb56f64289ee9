"""The runs to replay where no study names any: some drafters, or all that are installed, at several gammas.

Importing this imports no torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_core._version import OWN
from specdec_core.interface.controllers import MAX_GAMMA
from specdec_core.interface.errors import ConfigError
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.registry.shipped import drafter_settings
from specdec_core.study.config.yaml_source import parse_value

if TYPE_CHECKING:
    from specdec_core.offline.record.format import Record

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


def default_drafters(
    record: "Record", registry: Registry | None = None
) -> tuple[list[DrafterLike], Mapping[str, str]]:
    """Return our drafters that can be replayed without the target, and why others are not, by name.

    `drafters.json` in a collection of models names the settings of the drafters that come with its targets.

    Args:
        record: The record.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        ConfigError: No drafter can be replayed.
    """
    registry = registry or default_registry()
    known = drafter_settings(record.header.target.model)
    drafters: list[DrafterLike] = []
    left_out: dict[str, str] = {}
    for name in registry.names("drafter"):
        config, owner = registry.drafter_config(name), registry.origin("drafter", name).distribution
        if owner != OWN:  # it may call a service, or write files
            left_out[name] = f"it is of {owner}; name it to replay it."
            continue
        if config.needs_model or config.needs_hidden_states:
            left_out[name] = "it works on the target; name it to try it."
            continue
        drafter = {"name": name, **known.get(name, {})}
        try:
            plugin_settings(registry, "drafter", drafter)
        except ConfigError as error:
            left_out[name] = str(error).partition("\n")[0].partition(": ")[2] or str(error)
        else:
            drafters.append(drafter)
    if not drafters:
        reasons = "".join(f"\n{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"no installed drafter can be replayed without settings; pass a study.{reasons}")
    return drafters, left_out
