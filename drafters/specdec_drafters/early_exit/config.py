"""Settings of the early-exit drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specdec_core.interface import DrafterConfig
from specdec_drafters.training.config import TrainingConfig


class EarlyExitConfig(DrafterConfig):
    """The target's first layers with its own head, optionally trained (self-speculation).

    After which of the target's layers to exit, and with which trained exit.
    """

    needs_model: ClassVar[bool] = True

    layers: Annotated[int, Field(ge=1)] | None = None
    """Number of the target's layers that draft, from the first; by default those of the trained exit, or as
    many as Theorem 3.8 finds best."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """A trained exit for this target: a file, a folder with `early-exit.safetensors`, or `builtin:early-exit`. By
    default the target's own norm and head."""


class EarlyExitTrainerConfig(TrainingConfig):
    """Choose after how many layers the target should exit, and train that exit. The target is frozen.

    For the built-in target:

    ```
    specdec train early-exit --text builtin:stdlib --samples 50000 --minutes 6 --output early-exit.safetensors
    ```
    """

    layers: Annotated[int, Field(ge=1)] | None = None
    """Number of layers before the exit. By default all of the first half are tried, and the exit with the highest
    expected speed-up is kept."""
