"""Built-in models and prompts, by name. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specdec_core.interface.errors import ModelError, unknown_name

BUILTIN_PREFIX = "builtin:"

_FOLDER = Path(__file__).parent

PROMPTS = _FOLDER / "prompts.jsonl"
"""Excerpts of Python modules that no built-in model was trained on."""

BUILTIN_DRAFTERS = _FOLDER / "drafters.json"
"""Settings of drafters for the built-in targets: for each target, by the name of the plugin."""

BUILTIN_PROMPTS = {
    "heldout": PROMPTS,
    "translation": _FOLDER / "translation.jsonl",
    "summarization": _FOLDER / "summarization.jsonl",
}
"""Built-in prompt files by their name in a study. No built-in model was trained on them."""


def builtin_model(model: str) -> Path:
    """Return the folder of a built-in model.

    Args:
        model: Its name, such as `builtin:target`.

    Raises:
        ModelError: There is no such model. The message lists the built-in models.
    """
    return _by_folder("built-in model", model, "generation_config.json").parent


def builtin_heads(model: str) -> Path:
    """Return the weights file of built-in heads, which draft for a built-in model from its hidden states.

    Args:
        model: Their name, such as `builtin:heads`.

    Raises:
        ModelError: There are no such heads. The message lists the built-in heads.
    """
    return _by_folder("built-in heads", model, "heads.safetensors")


def builtin_exit(model: str) -> Path:
    """Return the weights file of a built-in exit, with which a built-in model's first layers draft for it.

    Args:
        model: Its name, such as `builtin:early-exit`.

    Raises:
        ModelError: There is no such exit. The message lists the built-in ones.
    """
    return _by_folder("built-in exit", model, "early-exit.safetensors")


def builtin_speculator(model: str) -> Path:
    """Return the folder of a built-in draft head in the format of the speculators package.

    Args:
        model: Its name, such as `builtin:eagle3`.

    Raises:
        ModelError: There is no such head. The message lists the built-in ones.
    """
    folders = (path.parent for path in sorted(_FOLDER.glob("*/config.json")))
    heads = [folder for folder in folders if not (folder / "generation_config.json").exists()]
    return _lookup("built-in draft head", model, {BUILTIN_PREFIX + folder.name: folder for folder in heads})


def builtin_record(name: str) -> Path:
    """Return the folder of a built-in record.

    Args:
        name: Its name, such as `builtin:code`.

    Raises:
        ModelError: There is no such record. The message lists the built-in records.
    """
    folders = [path.parent for path in sorted(_FOLDER.glob("records/*/record.json"))]
    return _lookup("built-in record", name, {BUILTIN_PREFIX + folder.name: folder for folder in folders})


def builtin_arpa(model: str) -> Path:
    """Return the ARPA file of a built-in n-gram model.

    Args:
        model: Its name, such as `builtin:translation-bigram`.

    Raises:
        ModelError: There is no such model. The message lists the built-in n-gram models.
    """
    paths = {BUILTIN_PREFIX + path.stem: path for path in sorted(_FOLDER.glob("*-ngram/*.arpa"))}
    return _lookup("built-in n-gram model", model, paths)


def _by_folder(label: str, name: str, file: str) -> Path:
    """Return `file` in the folder with this name."""
    paths = {BUILTIN_PREFIX + path.parent.name: path for path in sorted(_FOLDER.glob(f"*/{file}"))}
    return _lookup(label, name, paths)


def _lookup(label: str, name: str, paths: Mapping[str, Path]) -> Path:
    path = paths.get(BUILTIN_PREFIX + name.removeprefix(BUILTIN_PREFIX))
    if path is None:
        raise ModelError(unknown_name(label, name, list(paths)))
    return path
