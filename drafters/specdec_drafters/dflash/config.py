"""Settings of the dflash drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specdec_core.interface import DrafterConfig


class DFlashConfig(DrafterConfig):
    """A DFlash head from a speculators checkpoint drafts a block in one forward pass.

    The head to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """A DFlash head for this target, in the format of speculators: a folder or a hub name."""
