"""The drafter `last-word`: proposes what followed most often so far, after the longest context that occurred."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl


# --8<-- [start:drafter]
class LastWordConfig(DrafterConfig):
    """Proposes the tokens that have followed most often so far.

    Settings that a study can set. The docstring of a field is its description in the schema.
    """

    min_count: Annotated[int, Field(ge=1)] = 2
    """How often a token must have followed a single token before it is proposed."""
    context: Annotated[int, Field(ge=1)] = 3
    """The largest number of tokens to look back at."""


class LastWordDrafter(DeterministicDrafter):
    """Proposes the most frequent followers. The target accepts the tokens it would have generated itself."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return at most `budget` tokens to follow the committed ones (prompt first). Fewer or none are fine."""
        followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for length in range(1, self.config.context + 1):
            for end in range(length, len(tokens)):
                followers[tuple(tokens[end - length : end])][tokens[end]] += 1
        chain = list(tokens)
        while len(chain) < len(tokens) + budget:
            token = self._next(followers, chain)
            if token is None:
                break
            chain.append(token)
        return chain[len(tokens) :]

    def _next(self, followers: defaultdict[tuple[int, ...], Counter[int]], chain: list[int]) -> int | None:
        """Return what followed the longest known context at the end of the chain."""
        for length in range(self.config.context, 0, -1):
            best = followers[tuple(chain[-length:])].most_common(1)
            if best and best[0][1] >= (self.config.min_count if length == 1 else 1):
                return best[0][0]
        return None


# --8<-- [end:drafter]
@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Register the drafter. Every command calls this, so this module imports no torch at the top."""
    factory = "specdec_last_word:LastWordDrafter"
    return [PluginSpec("drafter", "last-word", factory, LastWordConfig)]
