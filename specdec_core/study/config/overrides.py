"""Changes of a study: `--set key=value` replaces values, and a grid varies a run or task that is written once."""

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Expanded:
    """A run or a task after its grid was expanded.

    Attributes:
        section: The list that holds it: `runs` or `tasks`.
        data: The entry with the values of the grid.
        index: Its index in the list as written.
        choices: The values from the grid, by dotted key.
        resolved: The keys of the entry that each dotted key resolves to.
    """

    section: str
    data: Any
    index: int
    choices: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Keys] = field(default_factory=dict)

    def written(self, path: Keys) -> Keys:
        """Return where in the study a setting of this entry was written.

        Args:
            path: The keys of the setting, relative to the entry.
        """
        for key, keys in self.resolved.items():
            if path[: len(keys)] == keys:
                return (self.section, self.index, "grid", key)
        return (self.section, self.index, *path)

    @property
    def suffix(self) -> str:
        """Suffix for the name that distinguishes this entry from the others of its grid."""
        last = [key.rpartition(".")[2] for key in self.choices]
        labels = last if len(set(last)) == len(last) else list(self.choices)
        pairs = zip(labels, self.choices.values(), strict=True)
        return "".join(f"-{label}={_label(value)}" for label, value in pairs)


def expand(document: Document, section: str, most: int) -> list[Expanded]:
    """Return the entries of a list with grids expanded; malformed grids are left to the validation.

    Args:
        document: The study.
        section: The list: `runs` or `tasks`.
        most: The most entries that it may have then.

    Raises:
        ConfigError: It would have more, or a key of a grid leads nowhere.
    """
    entries = document.data.get(section)
    if not isinstance(entries, list):
        return []
    _check_count(document, section, entries, most)
    expanded = []
    for index, entry in enumerate(entries):
        grid = entry.get("grid") if isinstance(entry, dict) else None
        if grid is not None and _well_formed(grid):
            whole = Expanded(section, entry, index)
            choices = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
            expanded += [_choose(document, whole, choice) for choice in choices]
        else:
            expanded.append(Expanded(section, entry, index))
    return expanded


def _check_count(document: Document, section: str, entries: list[Any], most: int) -> None:
    """Count the entries before they are made: a grid of a few lines can make more than fit into memory."""
    whole = 0
    for index, entry in enumerate(entries):
        grid = entry.get("grid") if isinstance(entry, dict) else None
        lengths = {key: len(values) for key, values in grid.items()} if grid and _well_formed(grid) else {}
        count = math.prod(lengths.values())
        whole += count
        if count > most:
            product = " x ".join(f"{shortened(key)} {length:,}" for key, length in lengths.items())
            where = document.where((section, index, "grid"), key=True)
            raise ConfigError(f"{where}: this grid makes {count:,} {section} ({product}); {too_many(most)}")
    if whole > most:
        where = document.where((section,), key=True)
        raise ConfigError(f"{where}: with grids expanded there are {whole:,} {section}; {too_many(most)}")


def too_many(most: int) -> str:
    """Return the end of a message about a study with too many runs."""
    return f"at most {most:,} are allowed. Vary less, or raise the limit with --max-runs."


def _well_formed(grid: Any) -> bool:
    return isinstance(grid, dict) and all(isinstance(values, list) and values for values in grid.values())


def _choose(document: Document, whole: Expanded, choices: dict[str, Any]) -> Expanded:
    data = copy.deepcopy({key: value for key, value in whole.data.items() if key != "grid"})
    resolved = {}
    for key, value in choices.items():
        try:
            resolved[key] = _Assignment(key, key.split("."), in_run=True).apply(data, copy.deepcopy(value))
        except ConfigError as error:
            where = document.where(whole.written(("grid", key)), key=True)
            raise ConfigError(f"{where}: {error}") from error
    return Expanded(whole.section, data, whole.index, choices, resolved)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_label, value))})"
    return str(value["name"]) if isinstance(value, dict) and "name" in value else str(value)
