"""Subjects by kind: of a function that builds the plugin, or of an installed plugin by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError, create_model

from specdec_core.interface import PluginConfig, TargetInfo
from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.spec import PluginKind
from specdec_core.registry import KIND_LABELS, default_registry
from specdec_core.testing.controller_subject import GammaSubject, LenienceSubject
from specdec_core.testing.rule_subject import RuleSubject
from specdec_core.testing.subject import DrafterSubject, Subject

SUBJECTS: dict[PluginKind, type[Subject]] = {
    "drafter": DrafterSubject,
    "gamma": GammaSubject,
    "lenience": LenienceSubject,
    "rule": RuleSubject,
}
"""The subject of each kind of plugin that has checks."""


def subject_of(kind: PluginKind, make: Callable[..., Any], **attributes: Any) -> Subject:
    """Return the subject of a kind. `attributes` are the others of `Subject`.

    Raises:
        ConfigError: No checks exist for this kind; or as for `Subject`.
    """
    if kind not in SUBJECTS:
        raise ConfigError(unknown_name("kind of plugin with checks", kind, SUBJECTS))
    return SUBJECTS[kind](make, **attributes)


def named(
    kind: PluginKind, name: str, settings: Mapping[str, Any] | None = None, *, seed: int = 0, device: str = "cpu"
) -> Subject:
    """Return an installed plugin as a subject, by its name in a study.

    Args:
        kind: `drafter`, `gamma`, `lenience` or `rule`.
        name: Its name.
        settings: Its settings, as in a study.
        seed: Seed of all random numbers that the checks use.
        device: Device of the targets that it is checked on.

    Raises:
        PluginError: The plugin does not exist; the message lists near misses.
        ConfigError: The settings are not valid; or as for `Subject`.
    """
    registry = default_registry()
    spec = registry.spec(kind, name)
    config = _config(kind, name, settings or {})

    def make(target: TargetInfo | None = None) -> Any:
        return registry.create(kind, name, config, target)

    return subject_of(kind, make, config=spec.config, seed=seed, spec=spec, device=device)


def _config(kind: PluginKind, name: str, settings: Mapping[str, Any]) -> PluginConfig:
    """Parse settings as a study does, nested plugins included."""
    # Imported here, since nothing else of the kit needs the study.
    from specdec_core.registry.validation_errors import describe
    from specdec_core.study.config.schema import run_model

    field = run_model(default_registry()).model_fields[kind]
    model = create_model("Plugin", **{kind: (field.annotation, field)})  # type: ignore[call-overload]
    data = {kind: {"name": name, **settings}}
    try:
        config: PluginConfig = getattr(model.model_validate(data), kind)
    except ValidationError as error:
        plugin = f"{KIND_LABELS[kind]} {name!r}"
        messages = describe(error, data, lambda *_: plugin, written=lambda path: path[1:], form="options")
        missing = _missing(error, default_registry().spec(kind, name).config, settings)
        raise ConfigError("\n".join([*messages, *_how_to_set(kind, name, missing)])) from error
    return config


def _missing(error: ValidationError, model: type[PluginConfig], settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that an error asks for: required ones, and those that a message of the model quotes."""
    names: list[str] = []
    for item in error.errors(include_url=False):
        if item["type"] == "missing":
            names.append(str(item["loc"][-1]))
        elif item["type"] == "value_error":
            names += re.findall(r"'(\w+)'", item["msg"])
    return [name for name in dict.fromkeys(names) if name in model.model_fields and name not in settings]


def _how_to_set(kind: PluginKind, name: str, missing: Sequence[str]) -> list[str]:
    """Return how to give settings, on the command line and in a kit class."""
    if not missing:
        return []
    model = default_registry().spec(kind, name).config
    known = model.model_json_schema()["properties"]
    value = {one: _placeholder(known[one]) for one in missing}
    options = [
        f"  --set {one}={value[one]}  {_first_line(known[one].get('description', ''))}".rstrip() for one in missing
    ]
    keys = ", ".join(f'"{one}": {value[one]}' for one in missing)
    return [
        f"In specdec check {kind}:{name} give it with",
        *options,
        f"and in a kit class with\n  settings = {{{keys}}}",
    ]


def _placeholder(schema: Mapping[str, Any]) -> str:
    """Return a placeholder for the value of a setting, given its JSON schema."""
    kinds = [schema, *schema.get("anyOf", ())]
    if any(one.get("format") == "path" for one in kinds):
        return "FILE"
    types = {"string": "TEXT", "integer": "NUMBER", "number": "NUMBER", "array": "[...]", "object": "{...}"}
    return next((types[one["type"]] for one in kinds if one.get("type") in types), "VALUE")


def _first_line(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0]
