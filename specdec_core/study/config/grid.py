"""Grids: a run or a task that is written once and varied."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdec_core.interface.errors import ConfigError, shortened
from specdec_core.study.config.overrides import set_dotted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdec_core.registry.nesting import Keys
    from specdec_core.study.config.yaml_source import Document


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
            expanded += [_choose(document, whole, choice) for choice in _choices(grid)]
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


def _choices(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _choose(document: Document, whole: Expanded, choices: dict[str, Any]) -> Expanded:
    data = copy.deepcopy({key: value for key, value in whole.data.items() if key != "grid"})
    resolved = {}
    for key, value in choices.items():
        try:
            resolved[key] = set_dotted(data, key, copy.deepcopy(value))
        except ConfigError as error:
            where = document.where(whole.written(("grid", key)), key=True)
            raise ConfigError(f"{where}: {error}") from error
    return Expanded(whole.section, data, whole.index, choices, resolved)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_label, value))})"
    return str(value["name"]) if isinstance(value, dict) and "name" in value else str(value)
