"""YAML with the location of every key, read and written; the only module that uses ruamel.yaml."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from specdec_core.interface.errors import ConfigError, reading, shortened
from specdec_core.interface.files import open_input
from specdec_core.registry.nesting import Keys

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Document", "Keys", "document_of", "parse_document", "parse_value", "read_document", "written_yaml"]

_MAX_BYTES = 1_000_000
# ruamel.yaml takes some 70 us for a value, and aliases can expand a small file into a huge tree.
_MAX_VALUES = 20_000
_MAX_LEVELS = 100
# No float holds a larger number.
_MAX_BITS = 1024
_STRING = "tag:yaml.org,2002:str"


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


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: If it cannot be read, is not valid YAML, or has a duplicate key; with line and column.
    """
    return parse_document(_read_text(path), str(path))


def parse_document(text: str, name: str) -> Document:
    """Read YAML text whose top level is a mapping; `name` stands for the file in messages."""
    loaded = _load(text, name)
    if not isinstance(loaded, Mapping):
        found = "it is empty" if loaded is None else f"it is a {_kind_of(loaded)}"
        raise ConfigError(f"{name}:1:1: expected a mapping of keys to values, but {found}.")
    document = Document(name, {})
    document.data = _Reader(document).plain(loaded, ())
    return document


def document_of(data: Mapping[str, Any], name: str) -> Document:
    """Return a mapping of Python as a document; `name` stands for the file in messages.

    Raises:
        ConfigError: If a key is not a string, or it is nested too deeply.
    """
    document = Document(name, {}, located=False)
    document.data = _Reader(document).plain(data, ())
    return document


def parse_value(text: str, name: str) -> Any:
    """Read a YAML value, e.g. the right side of `--set key=value`."""
    return _Reader(Document(name, {})).plain(_load(text, name), ())


def written_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that reads back equal, with its keys in the given order."""
    yaml = YAML()
    yaml.width = 115
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.allow_unicode = True
    text = io.StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def _read_text(path: Path) -> str:
    with reading(path, ConfigError, "YAML", lambda: _similar_files(path)):
        if path.is_dir():
            raise ConfigError(f"{path}: this is a folder; pass the YAML file of a study.")
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise ConfigError(f"{path}: {size:,} bytes is too large for a study (limit: {_MAX_BYTES:,}).")
        with open_input(path, _MAX_BYTES) as file:
            return file.read().decode("utf-8-sig")


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    there = sorted(p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml"})
    near = get_close_matches(path.name, there, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(str(path.parent / n) for n in near)}?" if near else ""


def _load(text: str, name: str) -> Any:
    try:
        if "!" in text or ("*" in text and "&" in text) or len(text) > 2 * _MAX_VALUES:
            _check_events(text, name)
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = error.problem or error.context
        if "'\\t'" in str(reason):
            reason = f"{reason}: this is a tab; indent with spaces"
        raise ConfigError(f"{name}{location}: invalid YAML: {reason}.") from error
    except (YAMLError, ValueError) as error:
        if (number := _LONG_NUMBER.search(text)) is not None:
            line = text.count("\n", 0, number.start()) + 1
            raise ConfigError(f"{name}:{line}: the number {number[0][:20]}... is too large.") from error
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{name}: not a YAML file: {reason}.") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply.") from error


_LONG_NUMBER = re.compile(r"\d{4000}")
"""A number that Python may not be able to read."""


def _check_events(text: str, name: str) -> None:
    """Check YAML before it is loaded, which expands aliases and merge keys.

    An alias inside its own anchor, which ruamel.yaml would silently read as empty, is an error, as are tags and
    more than `_MAX_VALUES` values.

    Raises:
        ConfigError: With the location of the tag, the alias or the first value too many.
    """
    sizes: dict[str, int] = {}  # number of values that each anchor stands for; 0 while it is open
    around: list[tuple[Any, int]] = []  # open collections, and the number of values before each
    count = 0
    for event in YAML(typ="rt").parse(text):
        if isinstance(event, CollectionEndEvent):
            opened, before = around.pop()
            if opened.anchor is not None:
                sizes[opened.anchor] = count - before
            continue
        if not isinstance(event, (AliasEvent, ScalarEvent, CollectionStartEvent)):
            continue
        where = f"{name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
        if isinstance(event, AliasEvent):
            if sizes.get(event.anchor) == 0:
                line = next(o for o, _ in reversed(around) if o.anchor == event.anchor).start_mark.line + 1
                raise ConfigError(
                    f"{where}: this alias is recursive: *{event.anchor} is inside &{event.anchor}, which begins "
                    f"in line {line}. Write it out."
                )
            count += sizes.get(event.anchor, 0)
        else:
            if event.tag is not None and not (event.tag in {"!", _STRING} and isinstance(event, ScalarEvent)):
                tag = shortened(str(event.tag))
                raise ConfigError(f"{where}: tags such as {tag} are not supported; write the value without it.")
            if isinstance(event, CollectionStartEvent):
                around.append((event, count))
            if event.anchor is not None:
                sizes[event.anchor] = int(isinstance(event, ScalarEvent))
            count += 1
        if count > _MAX_VALUES:
            raise ConfigError(f"{where}: more than {_MAX_VALUES:,} values, with aliases written out.")


class _Reader:
    """Converts what ruamel.yaml returns to plain data and records the location of each part."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0

    def plain(self, node: Any, path: Keys) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise ConfigError(f"{self._document.where(path)}: more than {_MAX_VALUES:,} values.")
        if len(path) > _MAX_LEVELS:
            raise ConfigError(f"{self._document.where(path)}: nested too deeply.")
        if not isinstance(node, (Mapping, list, tuple)):
            if isinstance(node, int) and node.bit_length() > _MAX_BITS:
                raise ConfigError(f"{self._document.where(path)}: this number is too large.")
            return _scalar(node)
        return self._mapping(node, path) if isinstance(node, Mapping) else self._sequence(node, path)

    def _mapping(self, node: Any, path: Keys) -> dict[str, Any]:
        result = {}
        marks = self._marks(node)
        for key, value in node.items():
            if not isinstance(key, str):
                where = self._document.where(path)
                raise ConfigError(f"{where}: the key {_shown(key)} is not a string; quote it if it is a name.")
            here = (*path, str(key))
            # Keys from a merge (<<) have no location.
            mark = marks.get(key)
            if mark is not None:
                self._document.keys[here] = (mark[0] + 1, mark[1] + 1)
                self._document.values[here] = (mark[2] + 1, mark[3] + 1)
            result[str(key)] = self.plain(value, here)
        return result

    def _sequence(self, node: Any, path: Keys) -> list[Any]:
        result = []
        marks = self._marks(node)
        for index, value in enumerate(node):
            mark = marks.get(index)
            if mark is not None:
                self._document.values[*path, index] = (mark[0] + 1, mark[1] + 1)
            result.append(self.plain(value, (*path, index)))
        return result

    def _marks(self, node: Any) -> Mapping[Any, Sequence[int]]:
        """Return line and column of the parts of a collection; there are none in what is empty or merged."""
        return (node.lc.data or {}) if self._document.located and hasattr(node, "lc") else {}


def _shown(key: Any) -> str:
    try:
        return shortened(repr(key))
    except ValueError:  # a number of thousands of digits
        return "of many digits"


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


def _kind_of(value: Any) -> str:
    return "list" if isinstance(value, Sequence) and not isinstance(value, str) else "single value"
