"""Committed tokens as plugins see them: read only, and never copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, overload


class TokenView(Sequence[int]):
    """The tokens of a sequence, which grow with it and can be read like a list: slices and sums are new lists.

    A plugin that changed the core's own list would change the text. Copying it would cost O(n) in every step.

    Args:
        tokens: The core's list.
    """

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

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
