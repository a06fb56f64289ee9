"""Settings of the suffix drafter. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from specdec_drafters.common.matching import MatchingConfig


class SuffixConfig(MatchingConfig):
    """Continues the longest match in the request and in earlier ones (suffix decoding).

    What to match, what to draft, and how many earlier requests to keep.
    """

    token_ids_only: ClassVar[bool] = True

    max_cached_requests: Annotated[int, Field(ge=0)] = 1000
    """The most earlier requests kept, with their prompts; the oldest are dropped. With 0, only the request itself
    is searched."""
