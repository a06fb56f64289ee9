"""`--set key=value`: a study with a few values replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_core.errors import ConfigError, unknown_name
from specdec_core.study.source import Document, Keys, parse_value

if TYPE_CHECKING:
    from collections.abc import Sequence


def apply_overrides(document: Document, settings: Sequence[str]) -> None:
    """Replace values of a document.

    Args:
        document: Changed in place.
        settings: Texts such as `generation.max_new_tokens=8` or `runs.bigram.gamma=2`: a dotted key whose
            parts are keys, places in a list from 0, or names in a list of runs; then a value in YAML.

    Raises:
        ConfigError: When a text is no `key=value` or its key leads nowhere.
    """
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: expected key=value, e.g. generation.max_new_tokens=8.")
        path = _assign(document.data, key.strip().split("."), parse_value(value, f"--set {text}"), text)
        document.overrides[path] = text


def set_dotted(data: dict[str, Any], key: str, value: Any, what: str) -> None:
    """Set a value by its dotted key, making mappings on the way; a bare plugin name becomes a mapping.

    Raises:
        ConfigError: When the key leads through a value that holds no keys; the message begins with `what`.
    """
    _assign(data, key.split("."), value, what)


def _assign(data: dict[str, Any], parts: list[str], value: Any, text: str) -> Keys:
    node: Any = data
    path: list[str | int] = []
    for place, part in enumerate(parts):
        step = _step(node, part, parts[:place], text)
        path.append(step)
        if place == len(parts) - 1:
            node[step] = value
        elif isinstance(node, dict):
            node[step] = _opened(str(step), node.get(str(step)), parts[place + 1])
            node = node[step]
        else:
            node = node[step]
    return tuple(path)


def _opened(key: str, value: Any, wanted: str) -> Any:
    """Return a value as something that holds keys: what was written in short is written out."""
    if value is None:
        return {}
    if key == "prompts" and isinstance(value, list) and not wanted.isdecimal():
        return {"texts": value}
    if isinstance(value, str):
        return {"model" if key == "target" else "name": value}
    return value


def _step(node: Any, part: str, before: list[str], text: str) -> str | int:
    if isinstance(node, dict):
        return part
    where = ".".join(before)
    if not isinstance(node, list):
        raise ConfigError(f"--set {text}: {where} is {node!r}, which holds no key {part!r}.")
    if part.isdecimal():
        if int(part) < len(node):
            return int(part)
        raise ConfigError(f"--set {text}: {where} has {len(node)} entries, counted from 0; there is no {part}.")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if part in names:
        return names.index(part)
    raise ConfigError(f"--set {text}: {unknown_name('entry of ' + where, part, [n for n in names if n])}")
