"""Options that name a model or prompts: a plain name, or YAML as in a study, on the command line or in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from pydantic import BaseModel

from specdec_core.cli.options.shared_options import validated
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import TargetConfig
from specdec_core.study.config.yaml_source import parse_value, read_document

_N = TypeVar("_N", int, float)

Device: TypeAlias = Annotated[
    str | None, typer.Option(help="Device of the target: cpu, cuda, cuda:1 ...  [default: auto]")
]
Dtype: TypeAlias = Annotated[
    str | None, typer.Option(help="Dtype of the target: float32, bfloat16, float16.  [default: auto]")
]
Named: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="The record's target. A hub model is loaded only if you name it, here or in a study.",
    ),
]
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
