"""Turn the digits that scikit-learn ships into token ids: the class, then 64 pixels in reading order.

Tokens 0 to 16 are gray levels, 17 to 26 the classes. There is no beginning and no end: a picture is a class and 64
pixels. Needs scikit-learn, or `--csv`, its file of the digits: the test set of UCI's "Optical Recognition of
Handwritten Digits", which UCI names `optdigits.tes`.

Run from the repository root: `python -m recipes.builtin_digits.data`
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).parent
WORK = HERE / ".work"
PROVENANCE = HERE / "provenance.json"

SIDE = 8
PIXELS = SIDE * SIDE
LEVELS = 17
CLASSES = 10
VOCABULARY_SIZE = LEVELS + CLASSES
HELD_OUT = 297
"""The last pictures of the file; no model is trained on them."""
SHIFTS = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""Rows down and columns right."""


def read_digits(path: Path | None) -> NDArray[np.int64]:
    """Return the pictures as token ids, `[N, 65]`: the class, then the pixels.

    Args:
        path: Lines of 64 levels and a class, separated by commas, perhaps compressed; None is scikit-learn's file.

    Raises:
        FileNotFoundError: There is no file, and scikit-learn is not installed.
        ValueError: The file holds something else.
    """
    if path is None:
        if find_spec("sklearn") is None:
            raise FileNotFoundError("scikit-learn is not installed: pip install scikit-learn, or give --csv FILE")
        path = Path(str(importlib.resources.files("sklearn.datasets.data") / "digits.csv.gz"))
    table = np.loadtxt(path, delimiter=",", ndmin=2)
    if table.shape[1] != PIXELS + 1:
        raise ValueError(f"{path}: expected lines of {PIXELS} levels and a class; found {table.shape[1]} values")
    pixels, classes = table[:, :PIXELS], table[:, PIXELS]
    whole = (table == table.round()).all() and table.min() >= 0
    if not whole or pixels.max() >= LEVELS or classes.max() >= CLASSES:
        raise ValueError(f"{path}: expected levels 0 to {LEVELS - 1} and classes 0 to {CLASSES - 1}")
    return np.concatenate([LEVELS + classes[:, None], pixels], axis=1).astype(np.int64)


def shifted(pictures: NDArray[np.int64], down: int, right: int) -> NDArray[np.int64]:
    """Return pictures `[N, 65]` moved by up to one pixel; what moves in is 0, and what moves out is lost."""
    grid = pictures[:, 1:].reshape(-1, SIDE, SIDE)
    room = np.pad(grid, ((0, 0), (1, 1), (1, 1)))
    moved = room[:, 1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
    return np.concatenate([pictures[:, :1], moved.reshape(-1, PIXELS)], axis=1)


def write_ids(path: Path, pictures: NDArray[np.int64]) -> None:
    """Write pictures `[N, 65]` as decimal token ids, one picture per line."""
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in pictures), encoding="utf-8")


def read_ids(path: Path) -> NDArray[np.int64]:
    """Return the pictures of a file, `[N, 65]`."""
    return np.loadtxt(path, dtype=np.int64, ndmin=2)


def main() -> None:
    """Write `train.ids`, `shifted.ids` and `test.ids` to the work folder, and provenance.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="the file of the digits; default: scikit-learn's")
    parser.add_argument("--work", type=Path, default=WORK, help="folder to write to")
    parser.add_argument("--provenance", type=Path, default=PROVENANCE, help="counts and digest of the pictures")
    arguments = parser.parse_args()
    pictures = read_digits(arguments.csv)
    train, test = pictures[:-HELD_OUT], pictures[-HELD_OUT:]
    arguments.work.mkdir(parents=True, exist_ok=True)
    write_ids(arguments.work / "train.ids", train)
    write_ids(arguments.work / "shifted.ids", np.concatenate([train, *(shifted(train, *by) for by in SHIFTS)]))
    write_ids(arguments.work / "test.ids", test)
    found = {
        "data": "UCI, Optical Recognition of Handwritten Digits: the test set, which scikit-learn ships",
        "pictures": {"train": len(train), "test": len(test)},
        "classes": np.bincount(pictures[:, 0] - LEVELS, minlength=CLASSES).tolist(),
        "sha256": hashlib.sha256(pictures.astype(np.uint8).tobytes()).hexdigest(),
    }
    arguments.provenance.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{len(train)} pictures to train on, {len(test)} held out")


if __name__ == "__main__":
    main()
