"""The confidence of draft tokens, q(x), and the drafts that a gamma controller ends because of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

KeepDrafting: TypeAlias = Callable[[Sequence[float]], Sequence[bool]]
"""Asks the gamma controller which sequences draft another token, given q(x) of the token each has just drafted."""


def confidence_in(token: Tensor, q: Tensor) -> Tensor:
    """Return the probability `[B]` of each row's token `[B]` in q `[B, V]`."""
    return q.gather(1, token[:, None])[:, 0]


def cut_by_confidence(
    rows: Sequence[list[int]], left: list[int], q: Tensor | None, keep_drafting: KeepDrafting
) -> None:
    """Cut drafts where the gamma controller would have ended them.

    Args:
        rows: The tokens of each row; cut in place.
        left: How many tokens each row may still draft; 0 afterwards in a row that was ended.
        q: `[B, K, V]`, the distribution of each token; None where they were certain.
        keep_drafting: Asks the controller.
    """
    for position in range(max(map(len, rows))):
        for row, more in enumerate(keep_drafting(_confidence_at(position, rows, q))):
            if not more and position < len(rows[row]):
                del rows[row][position + 1 :]
                left[row] = 0


def _confidence_at(position: int, rows: Sequence[Sequence[int]], q: Tensor | None) -> list[float]:
    """Return q of the tokens at a position: 1 where they were certain, NaN in rows that have none there."""
    return [
        math.nan if position >= len(row) else 1.0 if q is None else float(q[index, position, row[position]])
        for index, row in enumerate(rows)
    ]
