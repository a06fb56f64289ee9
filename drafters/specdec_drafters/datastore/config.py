"""Settings of the datastore drafter. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from specdec_drafters.common import TextSource
from specdec_drafters.common.matching import MatchingConfig


class DatastoreConfig(MatchingConfig):
    """Continues the longest match in a corpus (retrieval, as REST).

    The corpus, either `text` or `ids`; what to match in it, and what to draft.
    """

    token_ids_only: ClassVar[bool] = True

    text: TextSource | None = None
    """A UTF-8 text, or `builtin:stdlib`, the Python standard library."""
    ids: Path | None = None
    """A file of the target's token ids, one text per line."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of `text` to read; by default all, or 4 MB of `builtin:stdlib`."""

    @model_validator(mode="after")
    def _check_corpus(self) -> DatastoreConfig:
        if (self.text is None) == (self.ids is None):
            given = "neither" if self.text is None else "both"
            raise ValueError(f"give either 'text' (a text to search) or 'ids' (a file of token ids); got {given}")
        if self.ids is not None and self.max_bytes is not None:
            raise ValueError("'max_bytes' applies to 'text', not to 'ids'")
        return self
