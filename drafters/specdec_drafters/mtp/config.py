"""Settings of the mtp drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specdec_core.interface import DrafterConfig


class MtpConfig(DrafterConfig):
    """An MTP layer from a speculators checkpoint, on the target's last hidden states.

    The MTP layer to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """An MTP layer for this target, in the format of speculators: a folder or a hub name."""
