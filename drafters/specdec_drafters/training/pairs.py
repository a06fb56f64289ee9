"""Sources for an encoder, with or without targets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import reading
from specdec_core.interface.files import input_path
from specdec_core.models import LoadedModel


@dataclass(frozen=True)
class Pair:
    """A source and its target, in token ids; the target may be missing."""

    source: tuple[int, ...]
    target: tuple[int, ...] | None


def read_pairs(path: Path, model: LoadedModel) -> list[Pair]:
    """Read a JSONL file with a `source` and optionally a `target` per line, each a text or a list of token ids.

    Args:
        path: The file.
        model: The model whose tokenizer encodes texts; special tokens are added as the tokenizer does.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is malformed; with its number.
    """
    path = input_path(path)
    with reading(path, ConfigError, "JSON, one object per line"), path.open(encoding="utf-8-sig") as lines:
        pairs = list(_pairs(lines, str(path), model))
    if not pairs:
        raise ConfigError(f"--sources {path} is empty; give a file with one source per line.")
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
                f"{where}:{error.colno}: not JSON: {error.msg}; expected one object per line."
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: this cannot be read as JSON: {error}.") from error
        if not isinstance(entry, dict) or "source" not in entry:
            found = f"keys {', '.join(entry) or 'none'}" if isinstance(entry, dict) else type(entry).__name__
            raise ConfigError(
                f'{where}: expected an object with a "source" and optionally a "target"; found {found}.'
            )
        target = entry.get("target")
        yield Pair(
            _ids(entry["source"], where, "source", model),
            None if target is None else _ids(target, where, "target", model),
        )


def _ids(value: Any, where: str, name: str, model: LoadedModel) -> tuple[int, ...]:
    """Return the token ids of a text, or check given ids."""
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
            f'{where}: "{name}" must be a text, or a non-empty list of token ids from 0 to {model.vocab_size - 1}.'
        )
    longest = model.max_positions
    if name == "source" and longest is not None and len(value) >= longest:
        raise ConfigError(
            f'{where}: "{name}" has {len(value)} tokens, but {model.name} takes fewer than {longest}; shorten it.'
        )
    return tuple(value)


def _are_ids(value: Any, size: int) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < size for one in value)
