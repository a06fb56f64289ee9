"""YAML with the location of every key, read and written; the only module that uses ruamel.yaml."""

import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from specdec_core.interface.errors import ConfigError, did_you_mean, reading
from specdec_core.registry.nesting import Keys

_MAX_LEVELS = 100


@dataclass
class Document:
    """Data read from YAML, with the location of each part.

    Attributes:
        name: Name of the file in messages.
        data: The data, of plain Python types.
        keys: Line and column of each key, from 1.
        values: Line and column of each value, from 1.
        overrides: The `--set` text that replaced a value, by its keys.
        options: The option of a command that gave a value, by its keys.
        located: Whether its parts have locations; not if it comes from Python.
    """

    name: str
    data: dict[str, Any]
    keys: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    values: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    overrides: dict[Keys, str] = field(default_factory=dict)
    options: Mapping[Keys, str] = field(default_factory=dict)
    located: bool = True

    def where(self, path: Keys, *, key: bool = False) -> str:
        """Return `file:line:column` of a value (or its key), or of the closest part that contains it."""
        below = [text for keys, text in self.overrides.items() if keys[: len(path)] == path]
        if below and path not in self.values:
            return f"--set {below[0]}"
        parts = [path[:length] for length in range(len(path), -1, -1)]
        # Nothing below a replaced value comes from the file.
        for part in parts:
            if part in self.overrides:
                return f"--set {self.overrides[part]}"
            if part in self.options:
                return self.options[part]
        for part in parts:
            locations = self.keys if key and part == path else self.values
            if part in locations:
                line, column = locations[part]
                return f"{self.name}:{line}:{column}"
        return f"{self.name}:1:1" if self.located else self.name

    def shown(self, path: Keys) -> Keys:
        """Return the keys that a message shows after `where`: without those that an option stands for."""
        option = max((keys for keys in self.options if path[: len(keys)] == keys), key=len, default=())
        return path[len(option) :]

    def plain(self, node: Any, path: Keys = ()) -> Any:
        """Return what ruamel.yaml returned as plain data, and record the location of each part."""
        if tag := getattr(getattr(node, "tag", None), "value", None):  # nothing is made of what a file names
            raise ConfigError(f"{self.where(path)}: tags such as {tag} are not supported; remove it.")
        if len(path) > _MAX_LEVELS:
            raise ConfigError(f"{self.where(path)}: nested too deeply, or inside itself.")
        if isinstance(node, Mapping):
            return self._mapping(node, path)
        return self._sequence(node, path) if isinstance(node, (list, tuple)) else _scalar(node)

    def _mapping(self, node: Any, path: Keys) -> dict[str, Any]:
        result = {}
        marks = self._marks(node)
        for key, value in node.items():
            if not isinstance(key, str) and type(key) is not int:  # token ids are numbers
                where = self.where(path)
                raise ConfigError(f"{where}: the key {key!r} is not a string; quote it if it is a name.")
            here = (*path, str(key))
            # Keys from a merge (<<) have no location.
            mark = marks.get(key)
            if mark is not None:
                self.keys[here] = (mark[0] + 1, mark[1] + 1)
                self.values[here] = (mark[2] + 1, mark[3] + 1)
            result[str(key)] = self.plain(value, here)
        return result

    def _sequence(self, node: Any, path: Keys) -> list[Any]:
        result = []
        marks = self._marks(node)
        for index, value in enumerate(node):
            mark = marks.get(index)
            if mark is not None:
                self.values[*path, index] = (mark[0] + 1, mark[1] + 1)
            result.append(self.plain(value, (*path, index)))
        return result

    def _marks(self, node: Any) -> Mapping[Any, Sequence[int]]:
        """Return line and column of the parts of a collection; there are none in what is empty or merged."""
        return (node.lc.data or {}) if self.located and hasattr(node, "lc") else {}


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: If it cannot be read, is not valid YAML, or has a duplicate key; with line and column.
    """
    with reading(path, ConfigError, "YAML", lambda: _similar_files(path)):
        text = path.read_text(encoding="utf-8-sig")
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    """Read YAML text whose top level is a mapping; `name` stands for the file in messages."""
    loaded = _load(text, name)
    if not isinstance(loaded, Mapping):
        kind = "list" if isinstance(loaded, list) else "single value"
        found = "it is empty" if loaded is None else f"it is a {kind}"
        raise ConfigError(f"{name}:1:1: expected a mapping of keys to values, but {found}.")
    document = Document(name, {})
    document.data = document.plain(loaded)
    return document


def document_of(data: Mapping[str, Any], name: str) -> Document:
    """Return a mapping of Python as a document; `name` stands for the file in messages.

    Raises:
        ConfigError: If a key is not a string.
    """
    document = Document(name, {}, located=False)
    document.data = document.plain(data)
    return document


def parse_value(text: str, name: str) -> Any:
    """Read a YAML value, e.g. the right side of `--set key=value`."""
    return Document(name, {}).plain(_load(text, name))


def written_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that reads back equal, with its keys in the given order."""
    yaml = YAML()
    yaml.width = 115
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.allow_unicode = True
    text = io.StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    return did_you_mean(path.name, [there.name for there in path.parent.glob("*.y*ml")])


def _load(text: str, name: str) -> Any:
    try:
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = error.problem or error.context
        if "'\\t'" in str(reason):
            reason = f"{reason}: this is a tab; indent with spaces"
        raise ConfigError(f"{name}{location}: invalid YAML: {reason}.") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: invalid YAML: {str(error).splitlines()[0]}.") from error


def _scalar(node: Any) -> Any:
    # ruamel's number and string types remember their notation; results should hold plain ones.
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, (datetime.date, datetime.datetime)):
        return node.isoformat()
    for plain in (int, float, str):
        if isinstance(node, plain):
            return plain(node)
    return str(node)
