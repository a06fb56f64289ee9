"""Settings of the chain drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from specdec_core.interface import DrafterConfig, NestedDrafter


class ChainConfig(DrafterConfig):
    """Falls back to the next drafter when one has no draft.

    The drafters of a chain, and when to fall back to the next one.
    """

    token_ids_only: ClassVar[bool] = True

    drafters: tuple[NestedDrafter, ...]
    """At least one drafter, in the order they are asked: names, or mappings with `name` and settings."""
    min_draft_tokens: Annotated[int, Field(ge=1)] = 1
    """A shorter draft is replaced by the next drafter's, unless it was sampled."""

    @field_validator("drafters")
    @classmethod
    def _check_any(cls, drafters: tuple[Any, ...]) -> tuple[Any, ...]:
        if not drafters:
            raise ValueError("a chain needs at least one drafter")
        return drafters
