"""Errors in the files of a record, each naming its file. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from specdec_core.interface.errors import ConfigError, shortened

VERSION = 1
"""Version of the format, `specdec_record` in the header and in each shard."""
_Model = TypeVar("_Model", bound=BaseModel)


def damaged(path: Path, reason: str) -> ConfigError:
    """Return the error for a file of a record that cannot be used."""
    return ConfigError(
        f"{path}: this file of a record is damaged: {reason}. Copy the record again, or record it anew with "
        "--fresh."
    )


@contextmanager
def open_arrays(path: Path, framework: Literal["np", "pt"]) -> Iterator[Any]:
    """Open a safetensors file of a record.

    Args:
        path: The file.
        framework: Whose arrays are read.

    Raises:
        ConfigError: It cannot be read, or is not such a file: a folder, a named pipe.
    """
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise damaged(path, str(getattr(error, "strerror", None) or error)) from error


def validated(model: type[_Model], data: str | bytes, path: Path, within: str = "") -> _Model:
    """Return the content of a record's JSON. Values must have their types: nothing is converted.

    Args:
        model: What it must hold, its version as `specdec_record`.
        data: The JSON.
        path: The file that it comes from.
        within: The key that holds it, for messages.

    Raises:
        ConfigError: It has another version, or does not hold that; the message names the file and the key.
    """
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        versions = [one for one in problems if (one["loc"], one["type"]) == (("specdec_record",), "literal_error")]
        if versions:
            raise ConfigError(
                f"{path}: this is version {shortened(repr(versions[0]['input']))} of the format of records, and "
                f"this version of specdec reads {VERSION}; install the version of specdec that wrote it, or "
                "record it anew with --fresh."
            ) from error
        where = ".".join(map(str, [*filter(None, [within]), *problems[0]["loc"]])) or "the file"
        raise damaged(path, f"{shortened(where)}: {shortened(problems[0]['msg'], 500)}") from error
