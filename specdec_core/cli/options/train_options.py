"""The options of a trainer's command, created from the fields of its config model."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specdec_core.cli.options.shared_options import Quiet
from specdec_core.interface import ConfigError, PluginConfig, PluginSpec
from specdec_core.registry.cli_fields import CliField, cli_fields
from specdec_core.registry.validation_errors import describe

RunTrainer: TypeAlias = Callable[[PluginSpec, Mapping[str, Any], bool], None]
"""Runs a trainer, given the options as written and whether to hide progress."""

_TYPES = {int: "int", float: "float", str: "str", Path: "path"}


def train_command(spec: PluginSpec, run: RunTrainer) -> Any:
    """Return the command that runs a trainer: an option for each field of its config.

    Args:
        spec: The specification of the trainer; its class is not imported.
        run: Called with the options as written, before validation.
    """
    settings = cli_fields(spec.config)

    def command(**values: Any) -> None:
        quiet = values.pop("quiet")
        # Omitted options keep the default of the field, which need not be expressible as text.
        given = {key: value for key, value in values.items() if value is not None and value not in ([], ())}
        run(spec, given, quiet)

    options = {setting.name: setting.option for setting in settings}
    parameters = [_parameter(setting, spec.config.model_fields[setting.name], options) for setting in settings]
    parameters.append(inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command(spec.name, help=_help(spec, settings), short_help=spec.summary)(command)
    return typer.main.get_command(app)


def read_options(spec: PluginSpec, given: Mapping[str, Any]) -> PluginConfig:
    """Return a trainer's settings from the options on the command line.

    Args:
        spec: The trainer.
        given: Values by field: strings, booleans for flags, lists of strings for repeated options.

    Raises:
        ConfigError: With one line per problem: the option, what was given and what is allowed.
    """
    settings = {setting.name: setting for setting in cli_fields(spec.config)}
    data = {name: _read(settings[name], value) for name, value in given.items()}
    command = f"specdec train {spec.name}"

    def location(path: tuple[str | int, ...], _: bool) -> str:
        return settings[str(path[0])].option if path else command

    try:
        return spec.config.model_validate(data)
    except ValidationError as error:
        messages = describe(error, data, location, written=lambda _: ())
        options = {f"'{name}'": setting.option for name, setting in settings.items()}
        # Only messages about the settings as a whole name fields; in others, quotes hold the given value.
        lines = [_replaced(line, options) if line.startswith(command) else line for line in messages]
        raise ConfigError("\n".join(lines)) from error


def _read(setting: CliField, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(setting.parse, value))
    return setting.parse(value) if isinstance(value, str) else value


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Replace names of fields by names of options."""
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _parameter(setting: CliField, info: FieldInfo, options: Mapping[str, str]) -> inspect.Parameter:
    """Return the parameter from which typer creates the option; everything except flags is read as a string."""
    kind: Any = bool if setting.flag else list[str] if setting.multiple else str
    option = typer.Option(
        "/".join(setting.options),
        *(["-o"] if setting.name == "output" else []),
        help=_replaced(_about(setting, info), {f"`{name}`": f"`{other}`" for name, other in options.items()}),
        metavar=None if setting.flag else _metavar(setting),
        show_default=False,
    )
    required = info.is_required()
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, option],
    )


def _metavar(setting: CliField) -> str:
    """Return the type of a value; choices are listed in the help text."""
    kinds = [*setting.types, *([str] if setting.choices else [])]
    return f"<{'|'.join(_TYPES[kind] for kind in dict.fromkeys(kinds))}>"


def _about(setting: CliField, info: FieldInfo) -> str:
    """Return the help text of an option."""
    choices = [*map(str, setting.choices), *(["a number"] if {int, float} & set(setting.types) else [])]
    notes = [
        f"one of {', '.join(choices)}" if setting.choices else "",
        _default(setting, info),
        *dict.fromkeys(setting.bounds),
        "may be repeated" if setting.multiple else "",
    ]
    text = " ".join((info.description or "").split())
    noted = "; ".join(filter(None, notes))
    return f"{text} [{noted}]".strip() if noted else text


def _default(setting: CliField, info: FieldInfo) -> str:
    value = info.default
    if (
        info.is_required()
        or info.default_factory is not None
        or setting.default_off
        or value is None
        or value == ()
    ):
        return ""
    if setting.flag:
        return f"default: {setting.options[0 if value else 1][2:]}"
    values = value if isinstance(value, (tuple, list)) else (value,)
    return f"default: {', '.join(str(getattr(each, 'value', each)) for each in values)}"


def _help(spec: PluginSpec, settings: list[CliField]) -> str:
    """Return the docstring of the trainer's settings, with an example if it has none."""
    text = inspect.cleandoc(vars(spec.config)["__doc__"]) if spec.summary else ""
    if f"specdec train {spec.name}" in text:
        return text
    required = [setting for setting in settings if spec.config.model_fields[setting.name].is_required()]
    words = [f"specdec train {spec.name}", *(f"{s.option} {_example(s)}".strip() for s in required)]
    return f"{text}\n\nFor example:\n\n```\n{' '.join(words)}\n```\n"


def _example(setting: CliField) -> str:
    if setting.choices:
        return str(setting.choices[0])
    return "" if setting.flag else setting.name.upper().replace("_", "-")
