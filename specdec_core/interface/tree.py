"""The shape of a draft that is a token tree: a gamma controller asks for it, and a drafter fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TokenTree:
    """A tree whose shape is known before it is drafted.

    Nodes are numbered level by level, and siblings in the order in which they are drawn: the first is the most
    likely to be accepted. A draft with a smaller budget has the first nodes.

    Attributes:
        parents: The parent of each node, -1 for those that follow the committed tokens.

    Raises:
        ValueError: A parent does not come before its node, or nodes are not in the order of their depth.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        ordered = all(one <= other for one, other in zip(self.parents, self.parents[1:], strict=False))
        if not ordered or not all(-1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError(
                f"parents={self.parents}: expected numbers in ascending order, each from -1 to the node's own "
                "number less one."
            )

    @classmethod
    def from_widths(cls, widths: Sequence[int]) -> TokenTree:
        """Return the tree in which each node at depth d has `widths[d]` children.

        Args:
            widths: Numbers of at least 1; the first is that of the tokens that follow the committed ones.
        """
        parents: list[int] = []
        level: Sequence[int] = (-1,)
        for width in widths:
            first = len(parents)
            parents += [parent for parent in level for _ in range(width)]
            level = range(first, len(parents))
        return cls(tuple(parents))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Number of nodes at each depth."""
        return tuple(self.depths.count(depth) for depth in range(self.depth))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of ancestors of each node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The index of each node among its siblings, from 0."""
        seen: dict[int, int] = {}
        ranks = []
        for parent in self.parents:
            ranks.append(seen.get(parent, 0))
            seen[parent] = ranks[-1] + 1
        return tuple(ranks)

    @cached_property
    def depth(self) -> int:
        """The length of the longest path."""
        return max(self.depths, default=-1) + 1


@dataclass(frozen=True)
class BestFirstTree:
    """A tree whose shape follows the drafter's own probabilities.

    Each level has a number of nodes. One after the other, they become children of the node of the level before
    under which q has most mass left: the probability of its path, times that of the children it does not have yet.
    This is decided before a token is drawn, so that the draw is from q. Greedy drafts take the best paths.

    Attributes:
        widths: Number of nodes at each depth, at least 1.

    Raises:
        ValueError: A width is less than 1.

    References:
        EAGLE-2 (arXiv 2406.16858), which expands by the drafter's confidence and selects afterwards. A selection
        by the drawn tokens would change q.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(width >= 1 for width in self.widths):
            raise ValueError(f"widths={self.widths}: expected numbers of at least 1.")

    def __len__(self) -> int:
        return sum(self.widths)

    @property
    def depth(self) -> int:
        """The length of the longest path."""
        return len(self.widths)


TreeShape: TypeAlias = TokenTree | BestFirstTree
"""The trees that a gamma controller may ask for instead of a line."""


@dataclass(frozen=True)
class Branches:
    """One level of a tree as it is drafted.

    Attributes:
        tokens: `[B, M]` int64.
        parents: `[B, M]` int64, the number of each one's parent in the whole tree, or -1. The nodes of a sequence
            are numbered in the order in which they are drawn, without what is meaningless.
        lengths: Number of new nodes of each sequence. What lies beyond is meaningless.
    """

    tokens: Tensor
    parents: Tensor
    lengths: tuple[int, ...]
