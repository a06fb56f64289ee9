"""Settings of the dflash drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.interface import PluginConfig


class DFlashConfig(PluginConfig):
    """The head to draft with."""

    model: Annotated[str, Field(min_length=1)]
    """A DFlash head for this target in the format of the speculators package: a folder or a hub name."""
