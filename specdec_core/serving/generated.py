"""Modules that `specdec export` generates. Importing this imports no torch."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from specdec_core.interface.errors import ConfigError, shortened
from specdec_core.interface.files import check_output

_WIDTH = 100
_PLACEHOLDER = re.compile(r"\$(\w+)")


def module_source(template: str, values: Mapping[str, Any]) -> str:
    """Return a module from a template.

    Every value becomes a Python literal, so no name, path or setting can become code.

    Args:
        template: The module's source, with at most one placeholder `$name` a line, where an expression may be.
        values: Plain data for each placeholder.

    Raises:
        ConfigError: A value has no literal.
    """
    return "".join(_filled(line, values) for line in template.splitlines(keepends=True))


def check_module(path: Path, source: str, overwrite: bool) -> None:
    """Check that a module may be written to a path.

    Raises:
        ConfigError: Another module is there and `overwrite` is false, or the path cannot be written.
    """
    check_output(path, overwrite=True)
    if path.exists() and not overwrite and path.read_text(encoding="utf-8") != source:
        raise ConfigError(f"{path} exists already; pass --overwrite to replace it, or give another folder.")


def _filled(line: str, values: Mapping[str, Any]) -> str:
    """Return a line of a template with its placeholder replaced by a literal, whose lines are aligned."""
    match = _PLACEHOLDER.search(line)
    if match is None:
        return line
    value, column = values[match[1]], match.start()
    literal = pformat(value, width=_WIDTH - column, sort_dicts=False)
    try:
        ast.literal_eval(literal)
    except ValueError as error:
        raise ConfigError(f"{match[1]}: {shortened(literal)} cannot be written as a Python literal.") from error
    return line[:column] + literal.replace("\n", "\n" + " " * column) + line[match.end() :]
