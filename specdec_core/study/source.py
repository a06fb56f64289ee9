"""Reading YAML with the place of every key: the one module that knows ruamel.yaml."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.comments import TaggedScalar
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from specdec_core.errors import ConfigError, reading

if TYPE_CHECKING:
    from pathlib import Path

Keys: TypeAlias = tuple[str | int, ...]
"""A way into nested data, e.g. `("runs", 0, "gamma")`."""

_MOST_BYTES = 1_000_000
# Aliases in YAML can multiply a small file into a huge tree; no study comes near this many values.
_MOST_VALUES = 100_000
_MOST_LEVELS = 100


def dotted(path: Keys) -> str:
    """Return keys as they are read aloud: `runs[0].drafter.order`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".")


@dataclass
class Document:
    """Plain data read from YAML, and where each part of it was written.

    Attributes:
        name: What messages call the file.
        data: The data, of plain Python types.
        keys: Line and column of each key, counted from 1.
        values: Line and column of each value.
        overrides: The text of each `--set` that replaced a value.
    """

    name: str
    data: dict[str, Any]
    keys: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    values: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    overrides: dict[Keys, str] = field(default_factory=dict)

    def where(self, path: Keys, *, key: bool = False) -> str:
        """Return `file:line:column` of a value (or its key), or of the nearest thing around it."""
        below = [text for place, text in self.overrides.items() if place[: len(path)] == path]
        if below and path not in self.values:
            return f"--set {below[0]}"
        parts = [path[:length] for length in range(len(path), -1, -1)]
        # What was replaced as a whole has nothing left of the file in it.
        for part in parts:
            if part in self.overrides:
                return f"--set {self.overrides[part]}"
        for part in parts:
            places = self.keys if key and part == path else self.values
            if part in places:
                line, column = places[part]
                return f"{self.name}:{line}:{column}"
        return f"{self.name}:1:1"


def read_document(path: Path) -> Document:
    """Read a YAML file whose top is a mapping.

    Raises:
        ConfigError: When it cannot be read, is no YAML, or says something twice; with line and column.
    """
    return parse_document(_read_text(path), str(path))


def parse_document(text: str, name: str) -> Document:
    """Read YAML text whose top is a mapping; `name` is what messages call it."""
    loaded = _load(text, name)
    if not isinstance(loaded, Mapping):
        found = "it is empty" if loaded is None else f"this is a {_kind_of(loaded)}"
        raise ConfigError(f"{name}:1:1: expected a mapping of keys to values, but {found}.")
    document = Document(name, {})
    document.data = _Reader(document).plain(loaded, ())
    return document


def parse_value(text: str, name: str) -> Any:
    """Read one YAML value, e.g. the right side of `--set key=value`."""
    return _Reader(Document(name, {})).plain(_load(text, name), ())


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise ConfigError(f"{path}: this is a folder; give the YAML file of a study.")
    with reading(path, ConfigError, "YAML", lambda: _similar_files(path)):
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise ConfigError(f"{path}: {size:,} bytes is too much for a study; is it another file?")
        return path.read_bytes().decode("utf-8-sig")


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" Nor is there a folder {path.parent}."
    there = sorted(p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml"})
    near = get_close_matches(path.name, there, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(str(path.parent / n) for n in near)}?" if near else ""


def _load(text: str, name: str) -> Any:
    try:
        if "*" in text and "&" in text:
            _refuse_cycles(text, name)
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{place}: this is no valid YAML: {error.problem or error.context}.") from error
    except (YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{name}: this is no YAML file: {reason}.") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: this is nested too deeply.") from error


def _refuse_cycles(text: str, name: str) -> None:
    """Refuse an alias within what it stands for, which ruamel.yaml would read as nothing.

    Raises:
        ConfigError: With the place of the alias, and of what it stands for.
    """
    latest: dict[str, int] = {}  # where each anchor was set last, in number of events
    around: list[tuple[int, Any]] = []  # the collections that are open
    for number, event in enumerate(YAML(typ="rt").parse(text)):
        if isinstance(event, CollectionEndEvent):
            around.pop()
        elif isinstance(event, AliasEvent):
            within = [start for begun, start in around if begun == latest.get(event.anchor)]
            if within:
                place, line = event.start_mark, within[0].start_mark.line + 1
                raise ConfigError(
                    f"{name}:{place.line + 1}:{place.column + 1}: an alias repeats itself without end: "
                    f"*{event.anchor} stands within &{event.anchor}, which begins in line {line}. Write it out."
                )
        else:
            if getattr(event, "anchor", None) is not None:
                latest[event.anchor] = number
            if isinstance(event, CollectionStartEvent):
                around.append((number, event))


class _Reader:
    """Turns what ruamel.yaml returns into plain data and notes where each part stands."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0

    def plain(self, node: Any, path: Keys) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise ConfigError(
                f"{self._document.where(path)}: an alias repeats itself, to over {_MOST_VALUES:,} values."
            )
        if len(path) > _MOST_LEVELS:
            raise ConfigError(f"{self._document.where(path)}: this is nested too deeply.")
        if isinstance(node, TaggedScalar):
            raise ConfigError(f"{self._document.where(path)}: tags such as {node.tag} mean nothing in a study.")
        if not isinstance(node, (Mapping, list)):
            return _scalar(node)
        return self._mapping(node, path) if isinstance(node, Mapping) else self._sequence(node, path)

    def _mapping(self, node: Any, path: Keys) -> dict[str, Any]:
        result = {}
        for key, value in node.items():
            if not isinstance(key, str):
                raise ConfigError(f"{self._document.where(path)}: the key {key!r} is no text.")
            here = (*path, str(key))
            # Keys that came in through a merge (<<) have no place of their own.
            place = node.lc.data.get(key)
            if place is not None:
                self._document.keys[here] = (place[0] + 1, place[1] + 1)
                self._document.values[here] = (place[2] + 1, place[3] + 1)
            result[str(key)] = self.plain(value, here)
        return result

    def _sequence(self, node: Any, path: Keys) -> list[Any]:
        result = []
        for index, value in enumerate(node):
            place = node.lc.data.get(index) if node.lc.data else None
            if place is not None:
                self._document.values[*path, index] = (place[0] + 1, place[1] + 1)
            result.append(self.plain(value, (*path, index)))
        return result


def _scalar(node: Any) -> Any:
    # ruamel's own number and string types remember their notation; results should hold plain ones.
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
