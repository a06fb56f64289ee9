"""Registers the files of this package with specdec. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path

from specdec_core.interface import ModelsSpec
from specdec_core.registry import hookimpl


@hookimpl
def specdec_models() -> list[ModelsSpec]:
    """Register the files of this folder."""
    summary = "Small models of code and translation, with drafters, prompts and records."
    return [ModelsSpec("builtin", Path(__file__).parent, summary)]
