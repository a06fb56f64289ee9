"""The sequences of a batch: their tokens, where they end, and how plugins see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias, overload

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]
"""An end-of-sequence id; a stop string, or a constraint that nothing may follow; `max_new_tokens`; or the model's
maximum length."""


@dataclass
class Row:
    """One sequence while it is decoded.

    Attributes:
        tokens: All committed tokens, prompt first (for encoder-decoder targets the start token). It is one list
            from beginning to end: plugins have a view of it.
        begin: Number of them that were there before decoding.
        limit: Maximum number of tokens.
        reason_at_limit: Finish reason at the limit.
        reason: Finish reason, or None while the sequence is being decoded.
    """

    tokens: list[int]
    begin: int
    limit: int
    reason_at_limit: FinishReason
    reason: FinishReason | None = None

    @property
    def room(self) -> int:
        """Number of tokens that may be drafted: one is left for the recovered or bonus token."""
        return 0 if self.reason else self.limit - len(self.tokens) - 1


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


class TokenView(Sequence[int]):
    """The tokens of a sequence, which grow with it and can be read like a list: slices and sums are new lists.

    A plugin that changed the core's own list would change the text. Copying it would cost O(n) in every step.

    Args:
        tokens: The core's list.
    """

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def follow(self, other: TokenView) -> None:
        """Show the tokens of another view from now on."""
        self._tokens = other._tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)

    # `Sequence` has these, in Python; those of the list are several times faster.
    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def index(self, token: int, *between: int) -> int:
        """Return the first index of a token; see `list.index`."""
        return self._tokens.index(token, *between)

    def count(self, token: int) -> int:
        """Return the number of occurrences of a token."""
        return self._tokens.count(token)

    def copy(self) -> list[int]:
        """Return the tokens as a list, which may be changed."""
        return self._tokens.copy()

    def __add__(self, more: Sequence[int]) -> list[int]:
        return [*self._tokens, *more]

    # No `__radd__`: with it, `row += tokens` would bind a new list to `row` instead of extending the old one.

    def __eq__(self, other: object) -> bool:
        return self._tokens == (other._tokens if isinstance(other, TokenView) else other)

    def __repr__(self) -> str:
        return repr(self._tokens)

    def __reduce__(self) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, (self.copy(),)  # a copy of the view, deep or pickled, is a list

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the committed tokens are read-only; change a copy of them: list(tokens)")

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
