"""Settings of the prompt-copy drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from specdec_core.interface import DrafterConfig


class PromptCopyConfig(DrafterConfig):
    """Copies the continuation of an earlier match of the last tokens (prompt lookup).

    How much of the end of a sequence must match, and which match to copy from.
    """

    token_ids_only: ClassVar[bool] = True

    min_match: Annotated[int, Field(ge=1)] = 2
    """The shortest match; shorter ones draft nothing. Raise it if copies are often rejected."""
    max_match: Annotated[int, Field(ge=1)] = 16
    """The most tokens compared; matches of at least this length count as equally long."""
    prefer: Literal["recent", "frequent"] = "recent"
    """Which of equally long matches to copy: the latest one, or at each token the most frequent continuation."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens to copy in a step, in a tree in each copy; by default gamma."""

    @model_validator(mode="after")
    def _check_order(self) -> PromptCopyConfig:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")
        return self
