"""Settings of the translated drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from specdec_core.interface import DrafterConfig, Nested


class TranslatedConfig(DrafterConfig):
    """A drafter whose tokenizer is not the target's.

    A drafter with its own tokenizer, and how its drafts become tokens of the target.
    """

    needs_tokenizer: ClassVar[bool] = True

    drafter: Annotated[Any, Nested("drafter", same_tokens=False)]
    """The drafter to wrap."""
    method: Literal["tli", "slem"] = "tli"
    """`tli`, token-level intersection, or `slem`, string-level exact match."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Model with the drafter's tokenizer; by default the drafter's own."""
