"""Plugins that are nested in the settings of other plugins."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from specdec_core.interface import ModelSettings, Nested, PluginConfig

Keys: TypeAlias = tuple[str | int, ...]
"""Path into nested settings, such as `("drafters", 1)`."""


def dotted(path: Keys) -> str:
    """Return keys in dotted form: `runs[0].drafter.order`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".")


@dataclass(frozen=True)
class NestedSetting:
    """A plugin in the settings of another plugin.

    Attributes:
        keys: Path to it in the outer settings.
        marker: The `Nested` marker of the outer field.
        config: Its own settings.
    """

    keys: Keys
    marker: Nested
    config: PluginConfig


def marker_of(annotation: Any) -> Nested | None:
    """Return the `Nested` marker in a field's annotation, or None if the field does not hold a plugin."""
    if get_origin(annotation) is Annotated:
        found = [extra for extra in annotation.__metadata__ if isinstance(extra, Nested)]
        if found:
            return found[0]
    return next(filter(None, map(marker_of, get_args(annotation))), None)


def nested_settings(config: PluginConfig) -> Iterator[NestedSetting]:
    """Yield the plugins nested directly in a plugin's settings, in the order of its fields."""
    for name, field in type(config).model_fields.items():
        marker = marker_of(Annotated[field.annotation, *field.metadata, None])
        if marker is not None:
            for keys, value in entries(getattr(config, name)):
                if isinstance(value, PluginConfig):
                    yield NestedSetting((name, *keys), marker, value)


def models_in(config: PluginConfig) -> Iterator[ModelSettings]:
    """Yield the models that a plugin's settings name, those of nested plugins included."""
    if isinstance(config, ModelSettings) and config.model:
        yield config
    for nested in nested_settings(config):
        yield from models_in(nested.config)


def entries(value: Any) -> Iterator[tuple[Keys, Any]]:
    """Yield the values of a mapping, the items of a sequence, or the value itself, each with its keys."""
    if isinstance(value, Mapping):
        yield from (((key,), entry) for key, entry in value.items())
    elif isinstance(value, (tuple, list)):
        yield from (((index,), entry) for index, entry in enumerate(value))
    else:
        yield (), value
