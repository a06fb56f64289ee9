"""Prompts and an n-gram model for the built-in target, as `samples:NAME`."""

from __future__ import annotations

from pathlib import Path

from specdec_core import ModelsSpec, hookimpl


@hookimpl
def specdec_models() -> list[ModelsSpec]:
    """Register the files of this folder."""
    return [ModelsSpec("samples", Path(__file__).parent, "Beginnings of Python files, and their n-grams.")]
