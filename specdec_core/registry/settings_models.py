"""The settings of installed plugins as pydantic models, and plugins as users name them. Imports no torch."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, partialmethod
from types import UnionType
from typing import Annotated, Any, ForwardRef, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from specdec_core.interface import Nested, PluginConfig, PluginSpec
from specdec_core.interface.errors import ConfigError, PluginError, SpecdecError, exception_text
from specdec_core.interface.spec import PluginKind
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.nesting import marker_of
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.validation_errors import describe

_KINDS: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience", "rule")
"""The kinds of plugins that a study may name."""
_REFERENCE = "specdec_any_{}"


def plugin_settings(registry: Registry, kind: PluginKind, given: Any) -> PluginConfig:
    """Return the validated settings of a plugin, given as a study gives it.

    Args:
        registry: Where plugins come from.
        kind: The plugin's kind.
        given: A name, a mapping with `name` and settings, or a number where a plugin of this kind takes one.

    Raises:
        ConfigError: With one line per problem; unknown names and keys with near misses.
    """
    model, data = _argument_model(registry), {kind: given}
    name = given.get("name") if isinstance(given, Mapping) else given
    whose = f"{kind} {name!r}" if name in registry.names(kind) else kind
    try:
        config: PluginConfig = getattr(model.model_validate(data), kind)
    except ValidationError as error:
        lines = describe(error, data, lambda *_: whose, written=lambda path: path[1:], form="python")
        raise ConfigError("\n".join(lines)) from None
    return config


@lru_cache(maxsize=8)
def _argument_model(registry: Registry) -> type[BaseModel]:
    """Return a model with a field for each of `_KINDS`."""
    types = zip(_KINDS, plugin_types(registry), strict=True)
    fields: dict[str, Any] = {kind: (type_ | None, None) for kind, type_ in types}
    return create_model("Plugins", **fields)


NO_SOURCE = {"use_attribute_docstrings": False}
"""For models that are made at run time: pydantic would search for their source, to read docstrings there."""


@lru_cache(maxsize=8)
def plugin_types(registry: Registry) -> tuple[Any, ...]:
    """Return the annotations of fields that name a drafter, a controller of gamma or lenience, and a rule.

    Settings of plugins may nest plugins, even the same one, so the models refer to these annotations by name until
    all of them exist.
    """
    models = {kind: [_with_name(spec, registry) for spec in registry.specs(kind)] for kind in _KINDS}
    types = tuple(_plugin_type(kind, models[kind], registry) for kind in _KINDS)
    namespace = {_REFERENCE.format(kind): type_ for kind, type_ in zip(_KINDS, types, strict=True)}
    for model in itertools.chain.from_iterable(models.values()):
        model.model_rebuild(_types_namespace=namespace)
    return types


def _plugin_type(kind: PluginKind, models: Sequence[type[PluginConfig]], registry: Registry) -> Any:
    """Return the annotation of a field that names a plugin: a union discriminated by `name`."""
    chosen: Any = Any
    if len(models) == 1:
        chosen = models[0]
    elif models:
        chosen = Annotated[Union[tuple(models)], Field(discriminator="name")]  # noqa: UP007  (made at run time)
    written = chosen
    if models:
        names = [name for spec in registry.specs(kind) for name in (spec.name, *spec.aliases)]
        bare = Literal[tuple(names)]  # type: ignore[valid-type]
        written = chosen | bare | float if registry.shorthand(kind) else chosen | bare
    return Annotated[chosen, BeforeValidator(partial(_spell_out, kind, registry), json_schema_input_type=written)]


def _with_name(spec: PluginSpec, registry: Registry) -> type[PluginConfig]:
    """Return the model of a plugin's settings with its name, and with nested plugins resolved."""
    title = "".join(part.capitalize() for part in f"{spec.name}-{spec.kind}".replace("_", "-").split("-"))
    name: Any = Literal[(spec.name, *spec.aliases)]
    described = Field(description=spec.summary or f"The {spec.kind} {spec.name!r}.")
    fields = spec.config.model_fields.items()
    nested = {key: _filled_in(field) for key, field in fields if marker_of(_annotation(field)) is not None}
    model = create_model(
        title,
        __base__=spec.config,
        __doc__=spec.summary or None,
        __cls_kwargs__=NO_SOURCE,
        __validators__={"specdec_checked": _checked_by(registry.described(spec.kind, spec.name))},
        name=(name, described),
        **nested,
    )
    # The class is made here, so another process reads the settings again, with its own class.
    model.__reduce__ = partialmethod(_reduced, spec.kind)  # type: ignore[method-assign, assignment]
    return cast("type[PluginConfig]", model)


def _reduced(config: PluginConfig, kind: PluginKind) -> tuple[Any, ...]:
    return _unpickled, (kind, config.model_dump(mode="json"))


def _unpickled(kind: PluginKind, given: Mapping[str, Any]) -> PluginConfig:
    return plugin_settings(default_registry(), kind, given)


def _checked_by(whose: str) -> Any:
    """Return a validator in which what a plugin's own validators raise is a problem of its settings."""

    def check(cls: type[PluginConfig], value: Any, validate: Callable[[Any], PluginConfig]) -> PluginConfig:  # noqa: ARG001
        try:
            return validate(value)
        except (ValueError, AssertionError):
            raise  # pydantic collects them
        except Exception as error:
            reason = str(error) if isinstance(error, SpecdecError) else exception_text(error)
            message = f"{whose} could not check its settings: {reason}"
            raise PydanticCustomError("plugin", "{reason}", {"reason": message}) from error

    return model_validator(mode="wrap")(check)


def _annotation(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _filled_in(field: FieldInfo) -> Any:
    """Return the definition of a field with every marker replaced by the installed plugins."""
    attributes = field.asdict()["attributes"]
    settings = {key: value for key, value in attributes.items() if value is not None or key == "default"}
    # Defaults are written in the form of a study, and validated like one.
    return _with_references(_annotation(field)), Field(**{**settings, "validate_default": True})


def _with_references(annotation: Any) -> Any:
    """Return an annotation with markers replaced by references; see `plugin_types`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kinds = [extra.kind for extra in parts[1:] if isinstance(extra, Nested) and extra.kind in _KINDS]
        inner = ForwardRef(_REFERENCE.format(kinds[0])) if kinds else _with_references(parts[0])
        return Annotated[inner, *parts[1:]]
    replaced = tuple(map(_with_references, parts))
    if replaced == parts:
        return annotation
    return Union[replaced] if origin is UnionType else origin[replaced]  # noqa: UP007  (made at run time)


def _spell_out(kind: PluginKind, registry: Registry, value: Any) -> Any:
    """Expand a bare name or number to a mapping, and reject unknown names."""
    word = KIND_LABELS[kind]
    try:
        if isinstance(value, str):
            value = {"name": value}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            spec = registry.shorthand(kind)
            if spec is None:
                raise PluginError(f"no {word} accepts a bare number here; write {{name: ...}} instead.")
            value = {"name": spec.name, spec.shorthand: value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            names = ", ".join(registry.names(kind)) or "none"
            raise PluginError(f"a {word} must be a name or a mapping with 'name'. Available: {names}.")
        value = {**value, "name": registry.spec(kind, value["name"]).name}  # an alias becomes the name
    except PluginError as error:
        raise PydanticCustomError("plugin", "{reason}", {"reason": str(error)}) from error
    return value
