"""The input of one forward pass, which holds the tokens of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor


class Block(NamedTuple):
    """The input of one forward pass, aligned so that draft token i is in the same column for all rows.

    Row b holds left padding, its committed tokens that are not cached yet, its draft, and right padding. The last
    committed tokens of all rows share a column, and so do the logits that verify draft token i.

    Attributes:
        tokens: `[B, T]` int64.
        padding: Left padding of each row.
        counts: Number of tokens of each row, without padding.
        keep: Number of last columns whose logits are needed.
        draft: Number of last columns that hold draft tokens.
        inputs: Further arguments of the model's forward, aligned like the tokens.
    """

    tokens: Tensor
    padding: tuple[int, ...]
    counts: tuple[int, ...]
    keep: int
    draft: int
    inputs: Mapping[str, Tensor] = MappingProxyType({})
