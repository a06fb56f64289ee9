"""Settings of the mtp drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.interface import PluginConfig


class MtpConfig(PluginConfig):
    """The MTP layer to draft with."""

    model: Annotated[str, Field(min_length=1)]
    """An MTP layer for this target in the format of the speculators package: a folder or a hub name."""
