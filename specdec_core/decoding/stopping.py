"""When a row ends: end-of-sequence ids, stop strings, maximum lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]
"""An end-of-sequence id, a stop string, `max_new_tokens` reached, or no place left in the model."""


@dataclass(frozen=True)
class StopRule:
    """Decides, token by token, whether a row has ended.

    Attributes:
        eos_ids: Ids that end a row; the id itself is kept.
        strings: Strings that end a row; the token that completes one is kept.
        tokenizer: Needed for stop strings.
    """

    eos_ids: frozenset[int]
    strings: tuple[str, ...] = ()
    tokenizer: Any = None

    def clip(self, produced: Sequence[int], new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Return how much of `new` is kept after `produced`, and why the row ended if it did.

        Args:
            produced: Tokens generated so far, at least the last `reach` of them.
            new: Tokens that this step would add.
        """
        kept: list[int] = []
        for token in new:
            kept.append(token)
            if token in self.eos_ids:
                return kept, "eos"
            if self.strings and self._completes(produced, kept):
                return kept, "stop"
        return kept, None

    @property
    def reach(self) -> int:
        """How many tokens back a string that is completed now can begin.

        Every token of it spells at least one of its bytes; a few more are for a character split over tokens.
        """
        return max((len(string.encode()) + 4 for string in self.strings), default=0)

    def _completes(self, produced: Sequence[int], kept: list[int]) -> bool:
        tail = [*produced[-self.reach :], *kept][-self.reach :]
        text = self.tokenizer.decode(tail, skip_special_tokens=False)
        return any(string in text for string in self.strings)
