"""A token tree in the cache: which slots a node sees, and at which positions the nodes are."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from specdec_core.models.device import moved, uploaded


def lineage(parents: Tensor) -> Tensor:
    """Return whether node j of a tree is node i itself or one of its ancestors, `[B, N, N]` bool.

    Args:
        parents: `[B, N]` int64, the parent of each node, which comes before it, or -1.
    """
    count = parents.shape[1]
    step = parents[..., None] == torch.arange(count, device=parents.device)
    reach = torch.eye(count, device=parents.device) + step
    for _ in range(max(count - 1, 0).bit_length()):  # each product doubles the generations
        reach = (reach @ reach).clamp_(max=1)
    return reach > 0


@dataclass(frozen=True)
class CachedTree:
    """The nodes that follow the tokens of each row in the cache. Node n of row b is in slot `base[b] + n`.

    Attributes:
        base: Number of tokens of each row before the tree.
        counts: Number of nodes of each row.
        parents: `[B, N]` int64, the parent of each node, which comes before it; -1 for those that follow the
            tokens. Beyond a row's own nodes it is meaningless.
    """

    base: tuple[int, ...]
    counts: tuple[int, ...]
    parents: Tensor

    @classmethod
    def empty(cls, base: Sequence[int], device: torch.device) -> CachedTree:
        """Return a tree without nodes."""
        return cls(tuple(base), (0,) * len(base), torch.empty(len(base), 0, dtype=torch.long, device=device))

    def extended(self, parents: Tensor, lengths: Sequence[int]) -> tuple[CachedTree, Tensor]:
        """Return the tree with the nodes of another block, and the number of each.

        Args:
            parents: `[B, M]` int64, their parents.
            lengths: Number of new nodes of each row.

        Returns:
            The tree, and `[B, M]` int64; beyond a row's own nodes, the number of any node.
        """
        counts = tuple(map(operator.add, self.counts, lengths))
        if not any(self.counts):
            numbers = torch.arange(parents.shape[1], device=parents.device).clamp_(max=max(counts) - 1)
            return replace(self, counts=counts, parents=parents[:, : max(counts)]), numbers.expand(parents.shape)
        starts = uploaded(self.counts, parents.device)[:, None]
        numbers = starts + torch.arange(parents.shape[1], device=parents.device)
        # One more column takes what lies beyond a row's nodes.
        grown = parents.new_full((len(counts), max(counts) + 1), -1)
        grown[:, : self.parents.shape[1]] = self.parents
        ends = uploaded(counts, parents.device)[:, None]
        grown.scatter_(1, torch.where(numbers < ends, numbers, max(counts)), parents)
        return replace(self, counts=counts, parents=grown[:, :-1]), numbers.clamp_(max=max(counts) - 1)

    def pruned(self, nodes: Sequence[Sequence[int]], trunks: Sequence[int]) -> CachedTree:
        """Return the tree of some nodes only, as they are numbered after `ModelSession.prune`."""
        kept = torch.zeros(len(nodes), max(map(len, nodes)), dtype=torch.long)
        numbers = torch.full((len(nodes), self.parents.shape[1] + 1), -1)  # the last is that of parent -1
        for row, (own, trunk) in enumerate(zip(nodes, trunks, strict=True)):
            kept[row, : len(own)] = torch.tensor(own)
            numbers[row, list(own)] = torch.arange(len(own)) - trunk
        counts = tuple(len(own) - trunk for own, trunk in zip(nodes, trunks, strict=True))
        old = self.parents.gather(1, moved(kept, self.parents.device))
        new = moved(numbers, old.device).gather(1, old % numbers.shape[1]).clamp_(min=-1)
        columns = torch.arange(max(counts))[None] + torch.tensor(list(trunks))[:, None]
        new = new.gather(1, moved(columns.clamp_(max=max(new.shape[1] - 1, 0)), new.device))
        return CachedTree(tuple(map(operator.add, self.base, trunks)), counts, new)

    @cached_property
    def lineage(self) -> Tensor:
        """`[B, N, N]` bool: whether node j is node i itself or one of its ancestors."""
        return lineage(self.parents)

    @cached_property
    def depths(self) -> Tensor:
        """`[B, N]` int64: the number of ancestors of each node."""
        return self.lineage.sum(dim=2) - 1

    def places(self, nodes: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return where nodes are, and what they see: the tokens before the tree, their ancestors and themselves.

        Args:
            nodes: `[B, M]` int64.
            end: Number of slots that a pass attends to.

        Returns:
            The positions of the nodes, `[B, M]` int64; the slots that each sees, `[B, M, end]` bool; and the
            position of the token in each slot, `[B, end]` int64.
        """
        slots = torch.arange(end, device=self.parents.device)
        base = uploaded(self.base, self.parents.device)[:, None]
        count = self.parents.shape[1]
        of_slots = slots - base
        node = of_slots.clamp(0, count - 1)  # in each slot, if there is one
        inside = node == of_slots
        keys = torch.where(inside, base + self.depths.gather(1, node), slots)
        lineage = self.lineage.gather(1, nodes[..., None].expand(-1, -1, count))
        related = lineage.gather(2, node[:, None].expand(-1, nodes.shape[1], -1))
        visible = (slots < base)[:, None] | (inside[:, None] & related)
        return base + self.depths.gather(1, nodes), visible, keys

    def moves(self, nodes: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor] | None:
        """Return the slots of nodes that move when the others are dropped, and where to, each `[B, D]`.

        Args:
            nodes: The nodes that stay, in ascending order.
            fill: A slot for the rows in which fewer move.

        Returns:
            The slots; None if none moves.
        """
        pairs = [[(old, new) for new, old in enumerate(own) if old != new] for own in nodes]
        longest = max(map(len, pairs))
        if not longest:
            return None
        rows = [
            [*((base + old, base + new) for old, new in own), *[(fill, fill)] * (longest - len(own))]
            for base, own in zip(self.base, pairs, strict=True)
        ]
        both = uploaded(rows, self.parents.device)
        return both[..., 0], both[..., 1]

    def slots(self, paths: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor]:
        """Return the slots that the nodes on a path of each row are in, and where they belong, each `[B, D]`.

        Args:
            paths: The nodes, from the root on.
            fill: A slot for the rows whose path is shorter.
        """
        longest = max(map(len, paths))
        pairs = list(zip(self.base, paths, strict=True))
        found = [[*(base + node for node in path), *[fill] * (longest - len(path))] for base, path in pairs]
        wanted = [[*range(base, base + len(path)), *[fill] * (longest - len(path))] for base, path in pairs]
        both = uploaded([found, wanted], self.parents.device)
        return both[0], both[1]
