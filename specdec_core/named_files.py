"""What stands in the files that settings name, in a few letters. Importing this imports no torch.

A model that was trained again lies in the same folder as before. Results of both are not results of one study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specdec_core.shipped import BUILTIN_PREFIX

_WHOLE = 2**30
"""Bytes up to which a file is read whole: about a second."""
_PIECE, _PIECES = 2**20, 64
"""Of a larger file, so many pieces of so many bytes are read."""
_LOADED = (
    *("*.safetensors", "*.safetensors.index.json", "config.json", "*_config.json", "*.py", "*.jinja"),
    *("tokenizer*", "vocab*", "merges.txt", "*.model", "added_tokens.json", "special_tokens_map.json"),
)
"""Which files of a model's folder are read when it is loaded. What else lies there is of no consequence."""


def digests(settings: Any, folder: Path) -> dict[str, str]:
    """Return a short text for each file and model folder that settings name; it differs where contents differ.

    Of a file above 1 GiB, 64 pieces of 1 MiB are looked at, spread evenly: enough where all weights were trained
    again, and not where a few were. What cannot be read is left out; whoever loads it will say so. Models that are
    named by the hub are not looked at.

    Args:
        settings: Plain data. What a setting called `name` says is no path.
        folder: Where relative paths are meant from.

    Returns:
        By the path as it was written. What comes with specdec is not in it: the version stands for that.
    """
    found = {}
    for text in dict.fromkeys(_texts(settings)):
        try:
            files = _files(folder / Path(text).expanduser())
            if files:
                found[text] = _digest(files)
        except (OSError, ValueError, RuntimeError):  # no path at all, or nobody's home folder
            continue
    return found


def _texts(settings: Any) -> Iterator[str]:
    """Yield every text of plain data that may be a path."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            if key != "name":
                yield from _texts(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from _texts(value)
    elif isinstance(settings, str) and settings and not settings.startswith(BUILTIN_PREFIX):
        yield settings


def _files(place: Path) -> list[Path]:
    """Return a file, or what is loaded of a model's folder, in order; none of any other folder."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        return []
    known = (path for path in place.iterdir() if any(fnmatchcase(path.name, pattern) for pattern in _LOADED))
    loaded = sorted(path for path in known if path.is_file())
    return loaded if any(path.name == "config.json" or path.suffix == ".safetensors" for path in loaded) else []


def _digest(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= _WHOLE:
                whole.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for piece in range(_PIECES):
                file.seek((size - _PIECE) * piece // (_PIECES - 1))
                whole.update(file.read(_PIECE))
    return whole.hexdigest()[:16]
