"""Plugins in the settings of other plugins: where they stand, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from specdec_core.border import Nested, PluginConfig

Keys: TypeAlias = tuple[str | int, ...]
"""A way into nested settings, e.g. `("drafters", 1)`."""

MOST_DEEP = 16
"""How many plugins may be nested in one another."""
_MOST_LEVELS = 8 * MOST_DEEP


@dataclass(frozen=True)
class NestedSetting:
    """A plugin that stands in the settings of another.

    Attributes:
        keys: Where it stands in them.
        marker: What plugs in there.
        config: Its own settings.
    """

    keys: Keys
    marker: Nested
    config: PluginConfig


def marker_of(annotation: Any) -> Nested | None:
    """Return the marker in the annotation of a setting; None where the setting holds no plugin."""
    if get_origin(annotation) is Annotated:
        found = [extra for extra in annotation.__metadata__ if isinstance(extra, Nested)]
        if found:
            return found[0]
    return next(filter(None, map(marker_of, get_args(annotation))), None)


def nested_settings(config: PluginConfig) -> Iterator[NestedSetting]:
    """Yield the plugins that stand directly in the settings of a plugin, in the order of its fields."""
    for name, field in type(config).model_fields.items():
        marker = marker_of(Annotated[field.annotation, *field.metadata, None])
        if marker is not None:
            for keys, value in _entries(getattr(config, name)):
                if isinstance(value, PluginConfig):
                    yield NestedSetting((name, *keys), marker, value)


def _entries(value: Any) -> Iterator[tuple[Keys, Any]]:
    """Yield what a field holds, with the keys that lead there: itself, its entries, or its values."""
    if isinstance(value, Mapping):
        yield from (((key,), entry) for key, entry in value.items())
    elif isinstance(value, (tuple, list)):
        yield from (((index,), entry) for index, entry in enumerate(value))
    else:
        yield (), value


def depth_of(written: Any, around: tuple[Any, ...] = ()) -> int:
    """Return how many mappings that name a plugin stand in one another, in settings as they were written.

    Args:
        written: The settings.
        around: What they stand in; settings that contain themselves count as deeper than is allowed.
    """
    if not isinstance(written, (Mapping, list, tuple)):
        return 0
    if len(around) > _MOST_LEVELS or any(written is outer for outer in around):
        return MOST_DEEP + 1
    inner = written.values() if isinstance(written, Mapping) else written
    own = isinstance(written, Mapping) and "name" in written
    return own + max((depth_of(entry, (*around, written)) for entry in inner), default=0)
