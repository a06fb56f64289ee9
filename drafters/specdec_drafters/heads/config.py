"""Settings of the heads drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specdec_core.interface import DrafterConfig
from specdec_drafters.training.config import TrainingConfig


class HeadsConfig(DrafterConfig):
    """Trained heads on the target's last hidden state draft several tokens at once.

    The heads to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """Heads for this target: a file, a folder with `heads.safetensors`, or `builtin:heads`."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of heads to use, from the first; by default all in the file."""


class HeadsTrainerConfig(TrainingConfig):
    """Train heads that draft several tokens at once from the target's hidden state. The target is frozen.

    For the built-in target, this takes about twenty minutes:

    ```
    specdec train heads --text builtin:stdlib --samples 100000 --minutes 15 --output heads.safetensors
    ```
    """

    heads: Annotated[int, Field(ge=1)] = 4
    """Number of heads, the longest draft."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Width of each head's feed-forward layer; by default the target's hidden size."""
    reads_token: bool = True
    """Feed the heads the last token, too; without it, they are those of Stern et al. 2018, for greedy decoding."""
