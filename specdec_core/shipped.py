"""The models and prompts that ship with specdec, by name. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specdec_core.errors import ModelError, unknown_name

BUILTIN_PREFIX = "builtin:"

_FOLDER = Path(__file__).parent / "builtin"

PROMPTS = _FOLDER / "prompts.jsonl"
"""Prompts cut from modules that no built-in model was trained on."""

BUILTIN_PROMPTS = {
    "heldout": PROMPTS,
    "translation": _FOLDER / "translation.jsonl",
    "summarization": _FOLDER / "summarization.jsonl",
}
"""The prompt files that ship, by the name that a study gives them; none was trained on."""


def builtin_model(model: str) -> Path:
    """Return the folder of a built-in model.

    Args:
        model: Its name with the prefix, such as `builtin:target`.

    Raises:
        ModelError: There is no such model; the message names those there are.
    """
    return _file("built-in model", model, "config.json").parent


def builtin_heads(model: str) -> Path:
    """Return the file of built-in heads: weights that guess for a built-in model from its hidden state.

    Args:
        model: Its name with the prefix, such as `builtin:heads`.

    Raises:
        ModelError: There are no such heads; the message names those there are.
    """
    return _file("built-in heads", model, "heads.safetensors")


def builtin_arpa(model: str) -> Path:
    """Return the ARPA file of a built-in n-gram model.

    Args:
        model: Its name with the prefix, such as `builtin:translation-bigram`.

    Raises:
        ModelError: There is no such model; the message names those there are.
    """
    there = {BUILTIN_PREFIX + path.stem: path for path in sorted(_FOLDER.glob("*-ngram/*.arpa"))}
    return _found("built-in n-gram model", model, there)


def _file(what: str, name: str, file: str) -> Path:
    """Return the file by which a kind of what ships is known, in the folder that a name means."""
    there = {BUILTIN_PREFIX + path.parent.name: path for path in sorted(_FOLDER.glob(f"*/{file}"))}
    return _found(what, name, there)


def _found(what: str, name: str, there: Mapping[str, Path]) -> Path:
    found = there.get(BUILTIN_PREFIX + name.removeprefix(BUILTIN_PREFIX))
    if found is None:
        raise ModelError(unknown_name(what, name, list(there)))
    return found
