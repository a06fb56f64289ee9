"""What stands in the files that settings name, in a few letters. Importing this imports no torch.

A model that was trained again lies in the same folder as before. Results of both are not results of one study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_core.shipped import BUILTIN_PREFIX

_WHOLE = 64 * 2**20
"""Bytes up to which a file is read whole."""
_PIECE = 2**20
"""Of a larger file, pieces of so many bytes are read, together as much as is read of the largest whole one."""


def digests(settings: Any, folder: Path) -> dict[str, str]:
    """Return a short text for each file and model folder that settings name; it differs where contents differ.

    Of a file above 64 MiB, 64 pieces of 1 MiB are looked at, spread evenly: enough for weights that were trained
    again, which differ everywhere. What cannot be read is left out; whoever loads it will say so.

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
    """Return a file, or those of a model folder, in order; none of any other folder."""
    if (place / "config.json").is_file():
        return sorted(path for path in place.iterdir() if path.is_file())
    return [place] if place.is_file() else []


def _digest(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= _WHOLE:
                whole.update(file.read())
                continue
            for piece in range(count := _WHOLE // _PIECE):
                file.seek((size - _PIECE) * piece // (count - 1))
                whole.update(file.read(_PIECE))
    return whole.hexdigest()[:16]
