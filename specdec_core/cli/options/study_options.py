"""The options that describe a study: its target, prompts, settings and runs, and the study that they make.

A model and prompts are a plain name, or YAML as in a study, on the command line or in a file.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel
from typer import Option

from specdec_core.cli.options.shared_options import MaxRuns, Quiet, Ray, Settings, Wide, option_of, validated
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.registry.nesting import Keys
from specdec_core.study import MAX_RUNS, Study, load_study
from specdec_core.study.config.schema import RunConfig
from specdec_core.study.config.yaml_source import parse_value, read_document

_N = TypeVar("_N", int, float)
_Options = TypeVar("_Options")

TARGET_HELP = "The target: a folder, a hub name, builtin:target, or settings as YAML or a .yaml file."
PROMPTS_HELP = "Prompts: a file (.jsonl, .json, .csv, .tsv, .parquet, .txt), or settings as YAML or a .yaml file."


class _Target(BaseModel):
    target: TargetConfig


def read_target(text: str) -> TargetConfig:
    """Return the target that `--target` names.

    Raises:
        ConfigError: The settings are invalid.
    """
    return validated(_Target, {"target": target_settings(text)}).target


def target_settings(text: str, device: str | None = None, dtype: str | None = None) -> dict[str, Any]:
    """Return the settings of the target that `--target` names.

    Args:
        text: The option's value.
        device: The value of `--device`.
        dtype: The value of `--dtype`.

    Raises:
        ConfigError: It is neither a name nor settings, or an option repeats one of them.
    """
    data = _settings(text, "--target", ("model", "adapter", "offload_folder")) or {"model": text}
    for name, value in (("device", device), ("dtype", dtype)):
        if value is not None:
            if name in data:
                raise ConfigError(f"--{name}: --target sets {name!r} too; use one of them.")
            data[name] = value
    return data


def prompts_settings(text: str) -> dict[str, Any]:
    """Return the settings of the prompts that `--prompts` names.

    Raises:
        ConfigError: It is neither a name nor settings.
    """
    return _settings(text, "--prompts", ("file", "dataset", "path", "chat_template")) or {"file": text}


def read_numbers(option: str, text: str, kind: type[_N]) -> list[_N]:
    """Return the numbers of a text, which are separated by commas.

    Args:
        option: The option, for messages.
        text: Its value.
        kind: `int` or `float`.

    Raises:
        ConfigError: A part is not such a number.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{option}: expected numbers separated by commas, such as 0.5,0.3,0.2; {error}."
        ) from None


def _settings(text: str, option: str, paths: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the settings that a text holds or a YAML file has; None for a plain name.

    Args:
        text: The option's value.
        option: The option, for messages.
        paths: Keys that may hold paths, which are relative to the YAML file.
    """
    if Path(text).suffix in (".yaml", ".yml"):
        return _relative_to(Path(text).parent, read_document(Path(text)).data, paths)
    if not text.lstrip().startswith("{") and ": " not in text and "\n" not in text:
        return None
    found = parse_value(text, option)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{option}: expected a name or a mapping of settings; given {text!r}.")
    return dict(found)


def _relative_to(folder: Path, settings: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """Return settings with the paths that exist in a folder; others may be names on the hub."""
    there = {
        key: str(folder / settings[key])
        for key in paths
        if isinstance(settings.get(key), str) and (key == "offload_folder" or (folder / settings[key]).exists())
    }
    return {**settings, **there}


_SECTIONS = {"sampling": SamplingSettings.model_fields, "generation": GenerationSettings.model_fields}
_PATHS: dict[str, tuple[str, ...]] = {
    **{name: (section, name) for section, fields in _SECTIONS.items() for name in fields},
    "constraint": ("constraint",),
    "batch_size": ("batch_size",),
}
"""The keys in a study of what options set."""
_FIELDS = _SECTIONS["sampling"] | _SECTIONS["generation"] | RunConfig.model_fields


def settings_options(**kinds: Any) -> Callable[[type[_Options]], type[_Options]]:
    """Return a decorator that adds options for settings of a run or a generation, with their documentation.

    Args:
        kinds: The type of each option's value by the setting's name; a text is read as YAML.
    """

    def add(options: type[_Options]) -> type[_Options]:
        for name, kind in kinds.items():
            field = _FIELDS[name]
            about = [" ".join((field.description or "").split())]
            if type(field.default) in (int, float):
                about.append(f"[default: {field.default:g}]")
            option = Option(option_of([name]), help="  ".join(about), metavar="YAML" if kind is str else None)
            options.__annotations__[name] = Annotated[kind | None, option]
            setattr(options, name, None)
        return options

    return add


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the dataclasses among its parameters.

    Args:
        command: Takes options, and dataclasses whose fields are annotated as options.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        own = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=own[field.name]
            )
            for field in fields(kind)
        ]

    def run(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**values, **made)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How a study is changed, run and shown."""

    settings: Settings = None
    max_runs: MaxRuns = MAX_RUNS
    ray: Ray = None
    wide: Wide = False
    quiet: Quiet = False

    def load(self, path: Path) -> Study:
        """Read a study with these changes."""
        return load_study(path, self.settings or (), max_runs=self.max_runs)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where results go."""

    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder for results, from which the same command resumes.", metavar="DIR"),
    ] = None
    fresh: Annotated[bool, Option("--fresh", help="Discard what the folder of --output has.")] = False


@dataclass(frozen=True, kw_only=True)
@settings_options(top_k=int, top_p=float, min_p=float, repetition_penalty=float, max_new_tokens=int, seed=int)
class TaskOptions:
    """The work of a target, and its settings. An option that was not given is None: the study's default counts."""

    target: Annotated[
        str | None, Option("--target", "--model", help=f"{TARGET_HELP}  [default: builtin:target]")
    ] = None
    device: Annotated[str | None, Option(help="Device of the target: cpu, cuda, cuda:1 ...  [default: auto]")] = (
        None
    )
    dtype: Annotated[
        str | None, Option(help="Dtype of the target: float32, bfloat16, float16.  [default: auto]")
    ] = None
    prompts: Annotated[
        str | None, Option(help=f"{PROMPTS_HELP}  [default: built-in ones]", metavar="FILE|YAML")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TextOptions(TaskOptions):
    """The prompts of a target, and the ends of its texts."""

    stop: Annotated[list[str] | None, Option(help="End a text at this string; may be repeated.")] = None
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Continue after an end of sequence, up to --max-new-tokens.")
    ] = False


def given(options: Any) -> dict[str, Any]:
    """Return the options of a dataclass that were given, by name."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def study_of(
    path: Path | None,
    options: TaskOptions,
    *,
    settings: Sequence[str] | None = None,
    task: Sequence[str] = (),
    temperature: Sequence[float] | None = None,
    runs: Sequence[Mapping[str, str | int]] = (),
    beside: Sequence[str] = (),
) -> Study:
    """Return a study: that of a file, or the one that options describe.

    Args:
        path: The file; None for the options.
        options: What is decoded, and how.
        settings: Values of `--set`, for a file only.
        task: Values of `--task`, for a file only.
        temperature: Values of `--temperature`; with several, there is a task for each.
        runs: The runs, each with the values of its options by key of the study.
        beside: The options that have a meaning beside a file, too.

    Raises:
        ConfigError: The study is invalid, or an option has no meaning with or without a file.
    """
    if path is None:
        for option, values in (("--set", settings), ("--task", task)):
            if values:
                raise ConfigError(f"{option}: requires a study.")
        return study_of_options(options, temperature=temperature, runs=runs)
    own = [name for name in given(options) if name not in beside]
    own += ["temperature"] * (temperature is not None and "temperature" not in beside)
    for name in [*own, *(key for run in runs for key in run)]:
        raise ConfigError(
            f"{option_of((name,))}: the study sets this; change it there or with --set, or omit the study."
        )
    return load_study(path, settings or ())


def study_of_options(
    options: TaskOptions,
    *,
    temperature: Sequence[float] | None = None,
    runs: Sequence[Mapping[str, str | int]] = (),
    prompts: Mapping[str, Any] | None = None,
) -> Study:
    """Return the study that options describe; see `study_of`.

    Args:
        options: What is decoded, and how.
        temperature: Temperatures; with several, there is a task for each.
        runs: The runs.
        prompts: Settings of the prompts; by default those that the options name.

    Raises:
        ConfigError: The study is invalid; each line begins with an option.
    """
    target = target_settings(options.target or "builtin:target", options.device, options.dtype)
    if prompts is None:
        prompts = prompts_settings(options.prompts) if options.prompts else {"builtin": "heldout"}
    data: dict[str, Any] = {"target": target, "prompts": prompts, "sampling": {}, "generation": {}}
    names: dict[Keys, str] = {("target",): "--target (--model)", ("prompts",): "--prompts"}
    names |= {("target", name): option_of((name,)) for name in ("device", "dtype") if name in given(options)}
    for name, value in given(options).items():
        if name in _PATHS:
            *section, key = path = _PATHS[name]
            names[path] = option_of(path[-1:])
            (data[section[0]] if section else data)[key] = _read(key, value)
    temperatures = list(dict.fromkeys(temperature or ()))
    if len(temperatures) == 1:
        data["sampling"]["temperature"] = temperatures[0]
    elif temperatures:
        data["tasks"] = [
            {"name": f"temperature-{one:g}", "sampling": {"temperature": one}} for one in temperatures
        ]
    keys: list[Keys] = [(), *(("tasks", index) for index in range(len(temperatures)))]
    names |= {(*key, "sampling", "temperature"): "--temperature" for key in keys}
    data["runs"] = [{key: _read(key, value) for key, value in run.items()} for run in runs]
    names |= {("runs", index, key): option_of((key,)) for index, run in enumerate(runs) for key in run}
    return load_study(data, options=names)


def _read(key: str, value: Any) -> Any:
    """Return the value of an option, which is YAML if it is a text."""
    return parse_value(value, option_of((key,))) if isinstance(value, str) else value
