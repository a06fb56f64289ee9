"""The models and prompts that ship with specdec, by name. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path

from specdec_core.errors import ModelError, unknown_name

BUILTIN_PREFIX = "builtin:"

_FOLDER = Path(__file__).parent / "builtin"

PROMPTS = _FOLDER / "prompts.jsonl"
"""Prompts cut from modules that no built-in model was trained on."""

_HEADS = "heads.safetensors"


def builtin_model(model: str) -> Path:
    """Return the folder of a built-in model.

    Args:
        model: Its name with the prefix, such as `builtin:target`.

    Raises:
        ModelError: There is no such model; the message names those there are.
    """
    name = model.removeprefix(BUILTIN_PREFIX)
    there = sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))
    if name not in there:
        raise ModelError(unknown_name("built-in model", model, [BUILTIN_PREFIX + other for other in there]))
    return _FOLDER / name


def builtin_heads(model: str) -> Path:
    """Return the file of built-in heads: weights that guess for a built-in model from its hidden state.

    Args:
        model: Its name with the prefix, such as `builtin:heads`.

    Raises:
        ModelError: There are no such heads; the message names those there are.
    """
    name = model.removeprefix(BUILTIN_PREFIX)
    there = sorted(path.parent.name for path in _FOLDER.glob(f"*/{_HEADS}"))
    if name not in there:
        raise ModelError(unknown_name("built-in heads", model, [BUILTIN_PREFIX + other for other in there]))
    return _FOLDER / name / _HEADS
