"""Settings of the drafters that continue a match, `suffix` and `datastore`. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_core.interface import DrafterConfig


class MatchingConfig(DrafterConfig):
    """How much of the end of a sequence must match, and how much of what followed is drafted."""

    max_match: Annotated[int, Field(ge=1)] = 16
    """The most tokens compared; matches of at least this length count as equally long."""
    max_spec_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The most tokens drafted per token that matches; of a tree, in each path."""
    min_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The smallest share of the matches that a drafted token, with those before it, must have followed."""
