"""The drafter `recent`: a token is followed by what followed it last time."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl


class RecentConfig(DrafterConfig):
    """The token that followed each token the last time."""

    window: Annotated[int, Field(ge=2)] = 512
    """How many of the last tokens are looked at."""


class Recent(DeterministicDrafter):
    """Follows the trail of what came after each token the last time."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        followed_by = dict(pairwise(tokens[-self.config.window :]))
        guesses = [tokens[-1]]
        while len(guesses) <= budget and guesses[-1] in followed_by:
            guesses.append(followed_by[guesses[-1]])
        return guesses[1:]


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Announce the drafter."""
    return [PluginSpec("drafter", "recent", "specdec_recent:Recent", RecentConfig)]
