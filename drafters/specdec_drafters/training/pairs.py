"""Sources for an encoder, with or without what they should be answered with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_core.errors import ConfigError, reading
from specdec_core.models import LoadedModel


@dataclass(frozen=True)
class Pair:
    """A source and its target, in token ids; no target where none was given."""

    source: tuple[int, ...]
    target: tuple[int, ...] | None


def read_pairs(path: Path, model: LoadedModel) -> list[Pair]:
    """Read a JSONL file with a `source` and maybe its `target` a line, each a text or a list of token ids.

    Args:
        path: The file.
        model: Whose tokenizer turns texts into ids; what ends a sequence is added as the tokenizer does it.

    Raises:
        ConfigError: The file cannot be read or holds nothing, or a line is not of that form; with its number.
    """
    path = path.expanduser()
    with reading(path, ConfigError, "JSON, one object a line"), path.open(encoding="utf-8") as lines:
        pairs = list(_pairs(lines, str(path), model))
    if not pairs:
        raise ConfigError(f"--sources {path} is empty; give a file with a source a line.")
    return pairs


def _pairs(lines: Iterator[str], path: str, model: LoadedModel) -> Iterator[Pair]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{where}:{error.colno}: this is no JSON: {error.msg}; expected one object a line."
            ) from error
        if not isinstance(entry, dict) or "source" not in entry:
            said = f"keys {', '.join(entry) or 'none'}" if isinstance(entry, dict) else type(entry).__name__
            raise ConfigError(
                f'{where}: expected an object with a "source" and maybe a "target"; this has: {said}.'
            )
        target = entry.get("target")
        yield Pair(
            _ids(entry["source"], where, "source", model),
            None if target is None else _ids(target, where, "target", model),
        )


def _ids(value: Any, where: str, name: str, model: LoadedModel) -> tuple[int, ...]:
    """Return the token ids of a text, or check those that were given."""
    if isinstance(value, str):
        if model.tokenizer is None:
            raise ConfigError(
                f'{where}: "{name}" is a text, but {model.name} has no tokenizer: give a list of token ids, or '
                "put the tokenizer's files beside the model."
            )
        given = {"text": value} if name == "source" else {"text_target": value}
        value = model.tokenizer(**given)["input_ids"]
    if not _are_ids(value, model.vocab_size):
        raise ConfigError(
            f'{where}: "{name}" must be a text, or a list of token ids from 0 to {model.vocab_size - 1}, and not '
            "empty."
        )
    longest = model.max_positions
    if name == "source" and longest is not None and len(value) >= longest:
        raise ConfigError(
            f'{where}: "{name}" has {len(value)} tokens, and {model.name} takes fewer than {longest}; shorten it.'
        )
    return tuple(value)


def _are_ids(value: Any, size: int) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < size for one in value)
