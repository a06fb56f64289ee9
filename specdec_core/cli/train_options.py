"""The options of a trainer's command, made from the fields of its config model."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specdec_core.border import PluginConfig, PluginSpec
from specdec_core.errors import ConfigError
from specdec_core.registry.flat import FlatSetting, flat_settings
from specdec_core.study.problems import describe

Run: TypeAlias = Callable[[PluginSpec, Mapping[str, Any], bool], None]
"""Runs a trainer, given the options that were written and whether to show no progress."""

_QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
_TYPES = {int: "int", float: "float", str: "str", Path: "path"}


def train_command(spec: PluginSpec, run: Run) -> Any:
    """Return the command that runs a trainer: an option for each field of its config.

    Args:
        spec: The trainer as it announced itself. Its class is not imported.
        run: Called with what was written, not yet validated.
    """
    settings = flat_settings(spec.config)

    def command(**values: Any) -> None:
        quiet = values.pop("quiet")
        # A field that was not written keeps its own default, which need not be one that can be written.
        given = {key: value for key, value in values.items() if value is not None and value not in ([], ())}
        run(spec, given, quiet)

    options = {setting.name: setting.option for setting in settings}
    parameters = [_parameter(setting, spec.config.model_fields[setting.name], options) for setting in settings]
    parameters.append(inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_QUIET))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command(spec.name, help=_help(spec, settings), short_help=spec.summary)(command)
    return typer.main.get_command(app)


def read_options(spec: PluginSpec, given: Mapping[str, Any]) -> PluginConfig:
    """Return a trainer's settings from what was written on the command line.

    Args:
        spec: The trainer.
        given: Texts by field, truth values for flags, lists of texts for what may be repeated.

    Raises:
        ConfigError: With a line for each problem: the option, what was given and what is allowed.
    """
    settings = {setting.name: setting for setting in flat_settings(spec.config)}
    data = {name: _read(settings[name], value) for name, value in given.items()}
    command = f"specdec train {spec.name}"

    def place(path: tuple[str | int, ...], _: bool) -> str:
        return settings[str(path[0])].option if path else command

    try:
        return spec.config.model_validate(data)
    except ValidationError as error:
        messages = describe(error, spec.config, data, place, written=lambda _: ())
        options = {f"'{name}'": setting.option for name, setting in settings.items()}
        # Only what is said of the settings as a whole names fields; elsewhere in quotes is what was given.
        said = [_replaced(line, options) if line.startswith(command) else line for line in messages]
        raise ConfigError("\n".join(said)) from error


def _read(setting: FlatSetting, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(setting.read, value))
    return setting.read(value) if isinstance(value, str) else value


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Return a text in which what was said of fields is said of options."""
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _parameter(setting: FlatSetting, info: FieldInfo, options: Mapping[str, str]) -> inspect.Parameter:
    """Return the parameter from which typer makes the option; everything but a flag is read as text."""
    kind: Any = bool if setting.flag else list[str] if setting.many else str
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


def _metavar(setting: FlatSetting) -> str:
    """Return the type of a value; choices are in the help, where there is room for them."""
    kinds = [*setting.kinds, *([str] if setting.choices else [])]
    return f"<{'|'.join(_TYPES[kind] for kind in dict.fromkeys(kinds))}>"


def _about(setting: FlatSetting, info: FieldInfo) -> str:
    """Return what the help says of an option."""
    choices = [*map(str, setting.choices), *(["a number"] if {int, float} & set(setting.kinds) else [])]
    notes = [
        f"one of {', '.join(choices)}" if setting.choices else "",
        _default(setting, info),
        *dict.fromkeys(setting.bounds),
        "may be repeated" if setting.many else "",
    ]
    text = " ".join((info.description or "").split())
    noted = "; ".join(filter(None, notes))
    return f"{text} [{noted}]".strip() if noted else text


def _default(setting: FlatSetting, info: FieldInfo) -> str:
    value = info.default
    if info.is_required() or info.default_factory is not None or setting.off or value is None or value == ():
        return ""
    if setting.flag:
        return f"default: {setting.options[0 if value else 1][2:]}"
    values = value if isinstance(value, (tuple, list)) else (value,)
    return f"default: {', '.join(str(getattr(each, 'value', each)) for each in values)}"


def _help(spec: PluginSpec, settings: list[FlatSetting]) -> str:
    """Return the trainer's own words, with an example where it has none."""
    own = spec.config.__dict__.get("__doc__")
    text = inspect.cleandoc(own) if own else spec.summary
    if f"specdec train {spec.name}" in text:
        return text
    required = [setting for setting in settings if spec.config.model_fields[setting.name].is_required()]
    words = [f"specdec train {spec.name}", *(f"{s.option} {_example(s)}".strip() for s in required)]
    return f"{text}\n\nFor example:\n\n```\n{' '.join(words)}\n```\n"


def _example(setting: FlatSetting) -> str:
    if setting.choices:
        return str(setting.choices[0])
    return "" if setting.flag else setting.name.upper().replace("_", "-")
