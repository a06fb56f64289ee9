"""What may be said about heads on the target's hidden state. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.border import PluginConfig
from specdec_drafters.configs.training import LossName, TrainingConfig


class HeadsConfig(PluginConfig):
    """Which trained heads guess, and how many of them."""

    model: Annotated[str, Field(min_length=1)]
    """What `specdec train heads` wrote for this target: a file, a folder that holds `heads.safetensors`, or
    `builtin:heads`."""
    count: Annotated[int, Field(ge=1)] | None = None
    """How many heads are used, from the first; by default all in the file."""


class HeadsTrainerConfig(TrainingConfig):
    """Train heads that guess several tokens at once from the target's hidden state. The target does not change.

    For example, for the built-in target, in about twenty minutes:

    ```
    specdec train heads --text builtin:stdlib --samples 100000 --minutes 15 --output heads.safetensors
    ```
    """

    heads: Annotated[int, Field(ge=1)] = 4
    """How many heads: the most tokens that can be drafted in one go."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Width of each head's feed-forward layer; by default the size of the target's hidden state."""
    reads_token: bool = True
    """Whether the heads see the last token beside the hidden state it was drawn from. Off, they are those of
    Stern et al. (2018), which were made for argmax decoding, where the state says what the token will be."""
    loss: LossName = "kl-then-tv"
    """What is made small: `ce`, the cross-entropy of the text's tokens; `kl`, KL(p || q); `tv`, the total
    variation, which is 1 - alpha; `kl-then-tv`, the one and then more and more of the other."""
