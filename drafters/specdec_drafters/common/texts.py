"""Texts to train on: a file, the Python standard library, or token ids."""

import json
import re
import sysconfig
import tokenize
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import ConfigError, TargetInfo
from specdec_core.interface.errors import reading
from specdec_core.interface.files import input_path
from specdec_core.registry import shipped_file
from specdec_drafters.settings import BUILTIN_STDLIB

BUILTIN_STDLIB_BYTES = 4_000_000
MAX_DIGITS = 9  # fits int32 and any vocabulary


def read_documents(text: str, folder: Path, max_bytes: int | None) -> list[str]:
    """Return the documents of a text: one for a file, many for `builtin:stdlib`.

    Args:
        text: A path, or `builtin:stdlib`.
        folder: Base for relative paths.
        max_bytes: The most bytes to read.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, or is empty.
    """
    if text == BUILTIN_STDLIB:
        return _library_modules(max_bytes or BUILTIN_STDLIB_BYTES)
    path = input_path(text, folder)
    with reading(path, ConfigError, "a text to count"), path.open("rb") as file:
        raw = file.read(-1 if max_bytes is None else max_bytes)
        document = _decode(raw, cut=max_bytes is not None and len(raw) == max_bytes).removeprefix("\ufeff")
    if not document.strip():
        raise ConfigError(f"the text {path} is empty; give a non-empty text.")
    return [document]


def split_lines(documents: list[str]) -> list[str]:
    """Return the lines of all documents with their newlines, which a drafter must predict too."""
    return [line for document in documents for line in re.split(r"(?<=\n)", document) if line]


def read_ids(path: Path) -> list[NDArray[np.int32]]:
    """Return the sentences of a file of decimal token ids, one per line, as for `lmplz`.

    Args:
        path: The file. An empty line is an empty sentence.

    Raises:
        ConfigError: The file cannot be read, is empty, or has something other than token ids in it.
    """
    with reading(path, ConfigError, "token ids"), path.open("rb") as file:
        lines = file.read().removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    sentences = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        wrong = next((word for word in words if not word.isdigit() or len(word) > MAX_DIGITS), None)
        if wrong is not None:
            raise ConfigError(
                f"{path}:{number}: expected token ids in decimal; found {wrong[:40].decode(errors='replace')!r}. "
                "Separate token ids by blanks, or give the file as --text."
            )
        sentences.append(np.array([int(word) for word in words], dtype=np.int32))
    if not any(map(len, sentences)):
        raise ConfigError(f"{path} is empty; give a non-empty text.")
    return sentences


def tokenize_documents(documents: list[str], tokenizer: Any) -> list[NDArray[np.int32]]:
    """Return the token ids of each document, without special tokens: one array `[T]` per document.

    Args:
        documents: The texts.
        tokenizer: A Hugging Face tokenizer.
    """
    # verbose=False: a text longer than the model's context is fine here.
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    return [np.array(ids, dtype=np.int32) for ids in encoded]


def target_documents(
    drafter: str, text: str, max_bytes: int | None, target: TargetInfo
) -> list[NDArray[np.int32]]:
    """Return the documents of a text in the tokens of a target, `[T]` each.

    Args:
        drafter: Name of the drafter, for the error message.
        text: A path, or `builtin:stdlib`.
        max_bytes: The most bytes to read.
        target: The target.

    Raises:
        ConfigError: The target has no tokenizer, or the text cannot be read; see `read_documents`.
    """
    if target.tokenizer is None:
        raise ConfigError(
            f"drafter {drafter!r} cannot use the text {text!r}: the target has no tokenizer. "
            "Give a file of token ids instead, or a target with a tokenizer."
        )
    return tokenize_documents(read_documents(text, target.folder, max_bytes), target.tokenizer)


def check_ids(documents: Sequence[NDArray[np.int32]], vocab_size: int) -> None:
    """Check that there are tokens, and that all are in the vocabulary.

    Raises:
        ConfigError: There are none, or an id is not in the vocabulary.
    """
    lowest = min((int(document.min()) for document in documents if len(document)), default=0)
    highest = max((int(document.max()) for document in documents if len(document)), default=-1)
    if highest < lowest:
        raise ConfigError("the text has no tokens; give a non-empty text.")
    if lowest < 0 or highest >= vocab_size:
        raise ConfigError(
            f"token id {lowest if lowest < 0 else highest} is in the text; the target's vocabulary has the ids 0 "
            f"to {vocab_size - 1}. Give ids of the target's own vocabulary, or the tokenizer that belongs to it."
        )


def _decode(raw: bytes, *, cut: bool) -> str:
    """Decode UTF-8; if a limit cut the bytes, drop an incomplete last character."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data":
            return raw[: error.start].decode()
        raise


def _library_modules(max_bytes: int) -> list[str]:
    """Return the top-level modules of the Python standard library in order of name, up to a size.

    The modules that the built-in prompts come from are left out: a drafter that has read the continuation of a
    prompt would be measured on its memory.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    prompts = shipped_file("builtin:heldout", "prompts", "*.jsonl")
    assert prompts is not None, "it has the form of a reference"
    lines = prompts.read_text(encoding="utf-8").splitlines()
    held_out = {json.loads(line)["source"].rpartition(":")[0] for line in lines}
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
