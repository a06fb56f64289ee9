"""What the commands of `specdec theory` share."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, TypeAlias

import typer

from specdec_core.errors import ConfigError

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@contextmanager
def mendable() -> Iterator[None]:
    """Report a number that a formula refuses as a mistake in what was given."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{error}.") from error


def print_json(value: object) -> None:
    """Print JSON; infinity, which JSON has no word for, as null."""
    typer.echo(json.dumps(_finite(value), indent=2))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
