"""What n-grams are counted from: a text, the library that every Python brings along, or token ids."""

from __future__ import annotations

import json
import re
import sysconfig
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.errors import ConfigError, reading
from specdec_core.shipped import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BUILTIN_STDLIB = "builtin:stdlib"
BUILTIN_STDLIB_BYTES = 4_000_000
MOST_DIGITS = 9  # fits int32 and is more than any vocabulary has


def read_documents(text: str, folder: Path, max_bytes: int | None) -> list[str]:
    """Return the documents of a text: one of a file, many of `builtin:stdlib`.

    Args:
        text: A path, or `builtin:stdlib`.
        folder: Where a relative path is meant from.
        max_bytes: The most bytes read.

    Raises:
        ConfigError: if the file cannot be read, is not UTF-8, or has nothing in it.
    """
    if text == BUILTIN_STDLIB:
        return _library_modules(max_bytes or BUILTIN_STDLIB_BYTES)
    path = folder / Path(text).expanduser()
    with reading(path, ConfigError, "a text to count"), path.open("rb") as file:
        raw = file.read(-1 if max_bytes is None else max_bytes)
        document = _decode(raw, cut=max_bytes is not None and len(raw) == max_bytes)
    if not document.strip():
        raise ConfigError(f"the text {path} is empty; give a text with something in it.")
    return [document]


def split_lines(documents: list[str]) -> list[str]:
    """Return the lines of all documents, each with the newline that ends it: a drafter must guess that too."""
    return [line for document in documents for line in re.split(r"(?<=\n)", document) if line]


def read_ids(path: Path) -> list[NDArray[np.int32]]:
    """Return the sentences of a file of token ids: one a line, ids in decimal between blanks, as `lmplz` takes it.

    Args:
        path: The file. An empty line is an empty sentence.

    Raises:
        ConfigError: if the file cannot be read, has something other than token ids in it, or has none.
    """
    with reading(path, ConfigError, "token ids"):
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    sentences = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        wrong = next((word for word in words if not word.isdigit() or len(word) > MOST_DIGITS), None)
        if wrong is not None:
            raise ConfigError(
                f"{path}:{number}: expected token ids in decimal; found {wrong[:40].decode(errors='replace')!r}. "
                "Write token ids between blanks, or give the file as --text."
            )
        sentences.append(np.array([int(word) for word in words], dtype=np.int32))
    if not any(map(len, sentences)):
        raise ConfigError(f"{path} is empty; give a text with something in it.")
    return sentences


def tokenize_documents(documents: list[str], tokenizer: Any) -> list[NDArray[np.int32]]:
    """Return the token ids of each document, without special tokens: one array `[T]` each.

    Args:
        documents: The texts.
        tokenizer: A Hugging Face tokenizer.
    """
    # Not verbose: a text longer than the model's context is no mistake here.
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    return [np.array(ids, dtype=np.int32) for ids in encoded]


def _decode(raw: bytes, *, cut: bool) -> str:
    """Decode UTF-8; where a limit cut the bytes, up to three of a last character are left out."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return raw[: error.start].decode()
        raise


def _library_modules(max_bytes: int) -> list[str]:
    """Return the top-level modules of the running Python's library in order of name, up to a size.

    Left out are the modules that the built-in prompts were cut from: a drafter that has read what follows a
    prompt would be measured on its memory.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    held_out = _prompt_sources()
    documents: list[str] = []
    left = max_bytes
    for path in sorted(root.glob("*.py")):
        if path.name in held_out:
            continue
        size = path.stat().st_size
        if size > left:
            break
        left -= size
        with tokenize.open(path) as file:
            documents.append(file.read())
    if not documents:
        raise ConfigError(
            f"{BUILTIN_STDLIB}: no library source of at most {max_bytes} bytes in {root}. "
            "Raise max_bytes (--max-bytes), or give a text file."
        )
    return documents


def _prompt_sources() -> set[str]:
    """Return the library files that the built-in prompts come from, relative to the library."""
    return set(_sources(PROMPTS.read_text(encoding="utf-8").splitlines()))


def _sources(lines: list[str]) -> Iterator[str]:
    for line in lines:
        name, _, _ = json.loads(line)["source"].rpartition(":")
        yield name
