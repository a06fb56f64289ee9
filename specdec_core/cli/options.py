"""Arguments and options that several commands share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from specdec_core.errors import ConfigError
from specdec_core.study.problems import describe

_Model = TypeVar("_Model", bound=BaseModel)

StudyFile: TypeAlias = Annotated[Path, typer.Argument(help="YAML file of a study.", metavar="STUDY")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a value, e.g. generation.seed=1; may be repeated.", metavar="KEY=VALUE"),
]


def validated(model: type[_Model], data: Mapping[str, Any]) -> _Model:
    """Return the settings of a model from what options said, each under its setting's name.

    Raises:
        ConfigError: With a line for each option that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        messages = describe(error, model, data, lambda path, _: option_of(path), written=lambda path: path[1:])
        raise ConfigError("\n".join(messages)) from error


def option_of(path: Sequence[str | int]) -> str:
    """Return the option that gives a setting."""
    return f"--{path[0]}".replace("_", "-")
