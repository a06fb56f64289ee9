"""How trainers speak: of the options that were typed, and of what a study says to use what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def option(name: str) -> str:
    """Return a setting as it is typed: `--learning-rate` for `learning_rate`."""
    return f"--{name.replace('_', '-')}"


def value(given: Any) -> str:
    """Return the value of an option in words."""
    if given is None:
        return "not given"
    if isinstance(given, bool):
        return "on" if given else "off"
    return str(given)


def usage(drafter: str, key: str, path: Path) -> str:
    """Return how a study names a drafter: a YAML mapping in one line.

    Args:
        drafter: Its name.
        key: The setting that takes what was written.
        path: What was written. It is quoted as JSON does it, which YAML reads whatever is in it.
    """
    return f"{{name: {drafter}, {key}: {json.dumps(str(path), ensure_ascii=False)}}}"
