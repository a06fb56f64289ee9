"""Shared by the commands: consoles, common options, and validation of options."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from specdec_core.cli.terminal.console import error_console
from specdec_core.interface.errors import ConfigError
from specdec_core.registry.validation_errors import describe
from specdec_core.study.progress import TerminalProgress, quieten_libraries
from specdec_core.study.report.formats import visible_json

INTERRUPTED = 130
"""Exit code after Ctrl-C, by convention of the shells."""

StudyFile: TypeAlias = Annotated[Path, typer.Argument(help="YAML file of the study.", metavar="STUDY")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a value of the study, e.g. generation.seed=1; may be repeated.",
        metavar="KEY=VALUE",
    ),
]
Drafters: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A drafter: a name, or YAML with its settings; may be repeated.")
]
Machines: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        help="For a replay: a file of `specdec measure --output` with the times to expect; may be repeated.  "
        "[default: of the machine that recorded]",
        metavar="FILE",
    ),
]
Tasks: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Only this task of the study; may be repeated.  [default: all]")
]
Temperatures: TypeAlias = Annotated[
    list[float] | None,
    typer.Option(min=0, help="Sampling temperature, 0 is greedy; may be repeated.  [default: 0 and 1]"),
]
MaxRuns: TypeAlias = Annotated[int, typer.Option(min=1, help="The most runs of a study, over all tasks.")]
Ray: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Decode on a Ray cluster: HOST:PORT, ray://HOST:PORT, or local for a new one here. Without "
        "ADDRESS, the one that RAY_ADDRESS names or that runs here, else a new one. Needs specdec-core[ray].",
        metavar="[ADDRESS]",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Wide: TypeAlias = Annotated[bool, typer.Option("--wide", help="Show all columns of the tables.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], options: Mapping[str, Any]) -> _Model:
    """Return a settings model from options, each under the name of its setting.

    Raises:
        ConfigError: With one line per invalid option.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        messages = describe(error, options, lambda path, _: option_of(path), written=lambda path: path[1:])
        raise ConfigError("\n".join(messages)) from error


def option_of(path: Sequence[str | int]) -> str:
    """Return the option for a setting, given its keys."""
    return f"--{path[0]}".replace("_", "-")


@contextmanager
def plugin_output() -> Iterator[None]:
    """Send what plugins print to standard error: standard output is for results."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def shown_progress(*, quiet: bool, loads: bool = True) -> Iterator[TerminalProgress]:
    """Show the progress of a command on standard error, where what plugins print goes too.

    Args:
        quiet: Show nothing.
        loads: Whether the command begins with loading torch and transformers, whose own messages are silenced.
    """
    with TerminalProgress(error_console(), quiet=quiet) as progress, plugin_output():
        if loads:
            progress.stage("loading torch and transformers")
            quieten_libraries()
        yield progress


@contextmanager
def as_config_error() -> Iterator[None]:
    """Turn the ValueError of a formula into a ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{error}.") from error


def print_json(value: object) -> None:
    """Print JSON, with null for infinity and NaN, which JSON cannot express."""
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    typer.echo(visible_json(json.dumps(_finite(value), indent=2, ensure_ascii=ascii_only)))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
