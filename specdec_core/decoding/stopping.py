"""The ends of sequences: end-of-sequence ids and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]
"""An end-of-sequence id; a stop string, or a constraint that nothing may follow; `max_new_tokens`; or the model's
maximum length."""


@dataclass(frozen=True)
class StopRule:
    """Decides, token by token, whether a sequence has ended.

    Attributes:
        eos_ids: Ids that end a sequence; the id itself is kept.
        strings: Strings that end a sequence; the token that completes one is kept.
        tokenizer: Needed for stop strings.
    """

    eos_ids: frozenset[int]
    strings: tuple[str, ...] = ()
    tokenizer: Any = None

    def clip(self, produced: Sequence[int], new: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Return the part of `new` up to where the sequence ends, and the finish reason if it ends.

        Args:
            produced: Tokens generated so far, at least the last `reach` of them.
            new: Tokens to append.
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
        """How many tokens back a stop string that is completed now may start.

        Every token contributes at least one byte; a few more allow for a character split over tokens.
        """
        return max((len(string.encode()) + 4 for string in self.strings), default=0)

    def _completes(self, produced: Sequence[int], kept: list[int]) -> bool:
        tail = [*produced[-self.reach :], *kept][-self.reach :]
        text = self.tokenizer.decode(tail, skip_special_tokens=False)
        return any(string in text for string in self.strings)
