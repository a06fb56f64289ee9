"""Overrides: `--set key=value` replaces values of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.interface.errors import ConfigError, shortened, unknown_name
from specdec_core.registry.nesting import Keys
from specdec_core.study.config.yaml_source import Document, parse_value

_MAX_DIGITS = 9


def apply_overrides(document: Document, settings: Sequence[str], *, in_run: bool = False) -> None:
    """Replace values of a document.

    Args:
        document: Changed in place.
        settings: Overrides such as `generation.max_new_tokens=8` or `runs.bigram.gamma=2`: a dotted key and a
            value in YAML. The parts of the key are keys, indices from 0, or names of entries in a list.
        in_run: Whether the document is a run or a plugin, so that a bare name in a list stands for a plugin.

    Raises:
        ConfigError: If an override is not `key=value`, or its key does not exist.
    """
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {shortened(text)}: expected key=value, e.g. generation.max_new_tokens=8.")
        name = f"--set {shortened(text)}"
        assignment = _Assignment(name, key.strip().split("."), in_run=in_run)
        path = assignment.apply(document.data, parse_value(value, name))
        document.overrides[path] = shortened(text)


def set_dotted(run: dict[str, Any], key: str, value: Any) -> Keys:
    """Set a value of a run by its dotted key, creating mappings as needed; a bare plugin name becomes a mapping.

    Returns:
        The keys that lead to the value, with names in lists resolved to indices.

    Raises:
        ConfigError: If the key leads through a value without keys; the message begins with the key.
    """
    return _Assignment(key, key.split("."), in_run=True).apply(run, value)


class _Assignment:
    """Assigns a value to a dotted key.

    Args:
        text: Prefix of messages.
        parts: The parts of the key.
        in_run: Whether the key is relative to a run, where bare strings are names of plugins.
    """

    def __init__(self, text: str, parts: list[str], *, in_run: bool = False) -> None:
        self._text = text
        self._parts = parts
        self._in_run = in_run or parts[0] == "runs"

    def apply(self, data: dict[str, Any], value: Any) -> Keys:
        """Set the value; return the keys that lead to it."""
        node: Any = data
        path: list[str | int] = []
        for index, part in enumerate(self._parts):
            step = self._step(node, part, self._parts[:index])
            path.append(step)
            if index == len(self._parts) - 1:
                node[step] = value
            elif isinstance(node, dict):
                node[step] = self._expanded(str(step), node.get(str(step)), self._parts[index + 1])
                node = node[step]
            else:
                node[step] = self._entry(node[step])
                node = node[step]
        return tuple(path)

    def _expanded(self, key: str, value: Any, next_part: str) -> Any:
        """Return a value as a mapping or list, with short forms written out."""
        if value is None:
            return {}
        if key == "prompts" and isinstance(value, list) and not next_part.isdecimal():
            return {"texts": value}
        if isinstance(value, str):
            return {"model" if key == "target" else "name": value}
        return value

    def _entry(self, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) and self._in_run else value

    def _step(self, node: Any, part: str, before: list[str]) -> str | int:
        if isinstance(node, dict):
            return part
        where = ".".join(before)
        if not isinstance(node, list):
            given = shortened(repr(node))
            raise ConfigError(f"{self._text}: {where} is {given}, which has no key {shortened(part)!r}.")
        if part.isdecimal():
            if len(part) <= _MAX_DIGITS and int(part) < len(node):
                return int(part)
            count, given = len(node), shortened(part)
            raise ConfigError(
                f"{self._text}: {where} has {count} entries, numbered from 0; {given} is out of range."
            )
        entries = map(self._entry, node)
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
        if names.count(part) == 1:
            return names.index(part)
        if part in names:
            raise ConfigError(
                f"{self._text}: {names.count(part)} entries of {where} are called {part!r}; use the number of "
                "one, from 0."
            )
        raise ConfigError(f"{self._text}: {unknown_name('entry of ' + where, part, [n for n in names if n])}")
