"""The arguments of a decoder, resolved: plugins by name, settings as keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from specdec_core.interface import (
    AcceptanceRule,
    ConfigError,
    Drafter,
    GammaController,
    LenienceController,
    ModelSettings,
    PluginConfig,
    PluginError,
    TargetInfo,
)
from specdec_core.interface.constraint import Constraint
from specdec_core.interface.errors import ArgumentError, unknown_name
from specdec_core.interface.run import RunSettings
from specdec_core.interface.settings import GenerationOptions, GenerationSettings, SamplingSettings
from specdec_core.interface.spec import PluginKind
from specdec_core.models import LoadedModel
from specdec_core.models.load.model_requirements import unmet_requirements
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.nesting import dotted
from specdec_core.registry.registry import BASES, Registry, default_registry
from specdec_core.registry.requirements import TargetFacts
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.registry.validation_errors import describe

PluginName: TypeAlias = str | Mapping[str, Any] | PluginConfig
"""A plugin's name, a mapping with `name` and settings, or its validated settings with its name."""
DrafterLike: TypeAlias = Drafter | PluginName
"""A drafter, or what names an installed one."""
GammaLike: TypeAlias = GammaController | int | PluginName
"""A gamma controller, the number of tokens to draft, or what names an installed controller."""
LenienceLike: TypeAlias = LenienceController | float | PluginName
"""A lenience controller, the factor l, or what names an installed controller."""
RuleLike: TypeAlias = AcceptanceRule | PluginName
"""An acceptance rule, or what names an installed one."""
ConstraintLike: TypeAlias = Constraint | Mapping[str, Any]
"""A constraint on a text: a `Constraint`, or a mapping with its fields."""

Metadata: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""What drafters are told of the prompts: a mapping for all of them, or one for each."""

_Settings = TypeVar("_Settings", bound=BaseModel)


def make_drafter(
    target: LoadedModel,
    given: DrafterLike,
    *,
    registry: Registry | None = None,
    folder: Path = Path(),
) -> Drafter:
    """Return the drafter that was given, or load the one that was named.

    Args:
        target: The loaded target.
        given: A drafter, or what names one.
        registry: Where plugins come from; by default the installed ones.
        folder: Base for relative paths in its settings.

    Raises:
        ArgumentError: It is neither a drafter nor what names one.
        ConfigError: Its name or settings are invalid.
        PluginError: It cannot be loaded, or its requirements are not met.
    """
    if isinstance(given, Drafter):
        return given
    registry = registry or default_registry()
    config = _settings(registry, "drafter", given)
    return create_drafter(registry, config, target.info(folder))


def create_drafter(registry: Registry, config: PluginConfig, target: TargetInfo) -> Drafter:
    """Load a drafter for a target.

    Args:
        registry: Where plugins come from.
        config: The drafter's settings, with its name.
        target: What drafters see of the target.

    Raises:
        PluginError: It cannot be loaded, or its requirements are not met.
    """
    unmet = unmet_requirements(registry, config, TargetFacts.of(target), folder=target.folder)
    for keys, error in unmet:
        raise PluginError(f"{dotted(keys)}: {error}" if keys else str(error)) from error
    drafter: Drafter = registry.create("drafter", _name(config), config, target)
    return drafter


def make_controller(kind: PluginKind, given: object, registry: Registry | None = None) -> Any:
    """Return the controller or rule that was given, or create the one that was named; None for None.

    Args:
        kind: `gamma`, `lenience` or `rule`.
        given: The object, or what names an installed one; see `GammaLike`, `LenienceLike` and `RuleLike`.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        ArgumentError: It is neither of these.
        ConfigError: Its name or settings are invalid.
        PluginError: It cannot be created.
    """
    if given is None or isinstance(given, BASES[kind]):
        return given
    registry = registry or default_registry()
    config = _settings(registry, kind, given)
    return registry.create(kind, _name(config), config)


def with_options(settings: _Settings, options: Mapping[str, Any], elsewhere: str) -> _Settings:
    """Return settings in which keyword arguments replace the fields of the same name.

    Args:
        settings: The settings.
        options: The keyword arguments.
        elsewhere: Where the other settings belong.

    Raises:
        ArgumentError: The keyword is unknown; with near misses.
        ConfigError: A value is invalid.
    """
    if not options:
        return settings
    kind = type(settings)
    others = SamplingSettings.model_fields | GenerationSettings.model_fields
    for name in options:
        if name not in kind.model_fields:
            hint, more = (elsewhere, "") if name in others else ("", f" {elsewhere}")
            raise ArgumentError(unknown_name("keyword argument", name, kind.model_fields, hint) + more)
    try:
        return kind.model_validate({**settings.model_dump(), **options})
    except ValidationError as error:
        lines = describe(
            error, options, lambda path, _: str(path[0]), written=lambda path: path[1:], form="python"
        )
        raise ConfigError("\n".join(lines)) from None


def settings_or_default(kind: type[_Settings], given: object, argument: str) -> _Settings:
    """Return settings that were given, the default ones for None.

    Raises:
        ArgumentError: Something else was given.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ArgumentError(
            f"{argument}={given!r} was given; it takes {kind.__name__}. Its fields are keyword arguments too: "
            f"{', '.join(f'{name}=...' for name in kind.model_fields)}."
        )
    return given


def generation_settings(given: object, options: GenerationOptions) -> GenerationSettings:
    """Return the settings of a call: those that were given, with its keyword arguments in place of theirs.

    Raises:
        ArgumentError: Something else was given, or a keyword is unknown.
        ConfigError: A value is invalid.
    """
    settings = settings_or_default(GenerationSettings, given, "settings")
    if isinstance(stop := options.get("stop"), str):
        options = {**options, "stop": (stop,)}
    return with_options(settings, options, "Temperature and the like are arguments of Decoder().")


def constraint_of_each(
    given: Sequence[ConstraintLike | None] | None, settings: GenerationSettings, count: int
) -> list[Constraint | None]:
    """Return the constraint of each sequence: those that were given one by one, else that of the settings.

    Args:
        given: What was passed as `constraints`.
        settings: Settings of the generation.
        count: Number of sequences.

    Raises:
        ArgumentError: It is not a sequence of constraints.
        ConfigError: There are more or fewer than sequences, or a constraint is invalid.
    """
    if given is None:
        return [settings.constraint] * count
    if isinstance(given, Mapping | Constraint | str):
        raise ArgumentError(
            f"constraints={given!r} was given; it takes a sequence with a constraint, or None, for each prompt. "
            "One for all prompts is `constraint`."
        )
    if len(given) != count:
        raise ConfigError(f"{len(given)} constraints were given for {count} prompts; one each is needed, or None.")
    return [
        with_options(settings, {"constraint": one}, "It is a field of a constraint.").constraint for one in given
    ]


def metadata_of_each(given: Metadata, count: int) -> list[Mapping[str, Any]]:
    """Return the metadata of each sequence.

    Args:
        given: What was passed as `metadata`.
        count: Number of sequences.

    Raises:
        ArgumentError: It is neither a mapping nor a sequence of mappings.
        ConfigError: There are more or fewer than sequences.
    """
    each = [given] * count if given is None or isinstance(given, Mapping) else list(given)
    if not all(one is None or isinstance(one, Mapping) for one in each):
        raise ArgumentError(
            f"metadata={given!r} was given; it takes a mapping such as {{'user': 'ann'}}, or a sequence with one, "
            "or None, for each prompt."
        )
    if len(each) != count:
        raise ConfigError(f"{len(each)} metadata were given for {count} prompts; one each is needed, or None.")
    return [one or {} for one in each]


def run_settings(
    drafter: DrafterLike | None,
    gamma: GammaController | None,
    lenience: LenienceController | None,
    rule: AcceptanceRule | None,
    draft_sampling: SamplingSettings | None,
    draft_beams: int | None = None,
) -> RunSettings:
    """Return the description of a run, which says what of it goes together.

    Args:
        drafter: The drafter, or what names one, which is not loaded.
        gamma: The gamma controller.
        lenience: The lenience controller.
        rule: The acceptance rule; None for Algorithm 1.
        draft_sampling: The drafter's own sampling settings.
        draft_beams: With beams, the number of nodes in each level of the draft.

    Raises:
        ArgumentError: An argument is of a type that is not taken.
        ConfigError: The drafter's name or settings are invalid.
    """
    if not (draft_beams is None or (type(draft_beams) is int and draft_beams > 0)):
        raise ArgumentError(f"draft_beams={draft_beams!r} was given; it takes a whole number above 0, or None.")
    if drafter is not None and not isinstance(drafter, Drafter):
        drafter = _settings(default_registry(), "drafter", drafter)
    parts = {"drafter": drafter, "gamma": gamma, "lenience": lenience, "rule": rule}
    given = {kind: _config(part) for kind, part in parts.items() if part is not None}
    return RunSettings(**given, draft_sampling=draft_sampling, draft_beams=draft_beams)


def _config(plugin: object) -> PluginConfig:
    """Return the settings of a plugin; one that keeps none has none."""
    config = plugin if isinstance(plugin, PluginConfig) else getattr(plugin, "config", None)
    return config if isinstance(config, PluginConfig) else PluginConfig()


def require(problems: Iterable[tuple[str, str]]) -> None:
    """Raise a `ConfigError` about the first problem of a run, if there is one."""
    for name, problem in problems:
        raise ConfigError(f"{name}: {problem}")


def _settings(registry: Registry, kind: PluginKind, given: object) -> PluginConfig:
    if isinstance(given, PluginConfig) and hasattr(given, "name"):
        return given
    if isinstance(given, Real) and not isinstance(given, bool):
        number = int(given) if isinstance(given, Integral) else float(given)
        if registry.shorthand(kind) is not None:
            return plugin_settings(registry, kind, number)
    elif isinstance(given, str | Mapping):
        return plugin_settings(registry, kind, given)
    raise ArgumentError(_not_a_plugin(registry, kind, given))


def _not_a_plugin(registry: Registry, kind: PluginKind, given: object) -> str:
    """Return a message that says what was given where a plugin was expected, and what is allowed."""
    base = BASES[kind]
    if isinstance(given, type) and issubclass(given, base):
        arguments = "config, target.info()" if kind == "drafter" else "config"
        return f"{kind}: the class {given.__name__} was given; pass an object, {given.__name__}({arguments})."
    text = repr(given)
    shown = f"{text} of type" if len(text) <= 60 and "\n" not in text else "an object of type"
    with_model = [
        spec.name
        for spec in registry.specs(kind)
        if issubclass(spec.config, ModelSettings)
        and [name for name, field in spec.config.model_fields.items() if field.is_required()] == ["model"]
    ]
    number = "" if registry.shorthand(kind) is None else " a number,"
    names = ", ".join(registry.names(kind)) or "none is installed"
    or_object = f"or {'an' if base.__name__.startswith('A') else 'a'} {base.__name__}"
    message = (
        f"{kind}: {shown} {type(given).__name__} was given; pass{number} the name of a "
        f'{KIND_LABELS[kind]} ({names}), a mapping {{"name": ..., ...}} with its settings, {or_object}.'
    )
    return message + "".join(f' To draft with a model: {{"name": "{name}", "model": ...}}.' for name in with_model)


def _name(config: PluginConfig) -> str:
    # The registry adds the plugin's name to its settings.
    name: str = getattr(config, "name")  # noqa: B009  (mypy knows no such field)
    return name
