"""The nodes of a token tree, drawn level by level, each from a q that is recorded with it.

Siblings are drawn without replacement: the q of a node is the drafter's distribution without its earlier siblings,
normalized. Where all its mass is drawn, the distribution starts anew. Greedy drafts take the best tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from specdec_core.interface import Branches, Dense, PointMass, Proposal, TokenTree
from specdec_core.interface.tree import TreeShape
from specdec_core.models.device import moved, uploaded
from specdec_core.sampling.generators import draw
from specdec_core.sampling.logits import LogitsToProbs

if TYPE_CHECKING:
    from specdec_core.decoding.drawing import DraftRecord


class LevelDraft(Protocol):
    """One step's draft, if it is a tree: drawn level by level, each from the logits after the level before."""

    @property
    def width(self) -> int:
        """P, the number of nodes of a sequence whose continuations are drawn next."""

    def wants_more(self) -> bool:
        """Return whether there is another level to draw."""

    def branch(self, logits: Tensor) -> Branches:
        """Draw the next level, given the logits `[B, P, V]` after each node of the level before."""

    def proposal(self) -> Proposal:
        """Return everything drawn, in memory that the next step overwrites."""


@dataclass(eq=False)
class TreeDraft:
    """A tree of the shape asked for.

    Args:
        shape: What to draw.
        budget: The maximum number of nodes of each sequence.
        to_probs: The sampling settings for drafts.
        record: Holds the tokens and q; one beside it does where logits come from the CPU.
        prefixes: The committed tokens of each sequence.
        numbers: Returns K random numbers of each sequence for this step.
    """

    shape: TreeShape
    budget: Sequence[int]
    to_probs: LogitsToProbs
    record: DraftRecord
    prefixes: Sequence[Sequence[int]]
    numbers: Callable[[], Sequence[Sequence[float]]]

    def __post_init__(self) -> None:
        self._uniforms: Tensor | None = None  # [B, K] float64
        self._level = self._drawn = self._before = 0
        self._last = (1,) * len(self.budget)  # nodes of the level before: at first the committed text
        self._weights: Tensor | None = None  # [B, P], the probability of the path to each of them
        self._parents: list[Tensor] = []

    @property
    def width(self) -> int:
        """P, the number of nodes whose continuations are drawn next."""
        return max(self._last)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of nodes that each sequence has so far."""
        return tuple(min(self._drawn, most) for most in self.budget)

    def wants_more(self) -> bool:
        """Return whether there is another level to draw."""
        return any(self._counts())

    def proposal(self) -> Proposal:
        """Return everything drawn, in memory that the next step overwrites."""
        width = max(self.lengths)
        if not width:
            return Proposal.empty(len(self.budget), self.record.device)
        parents = torch.cat(self._parents, dim=1)[:, :width]
        q = PointMass() if self.to_probs.greedy else Dense(self.record.buffer[:, :width])
        return Proposal(self.record.columns(width), self.lengths, q, parents)

    def branch(self, logits: Tensor) -> Branches:
        """Draw the next level.

        Args:
            logits: `[B, P, V]`, the logits after each node of the level before.
        """
        # Drafters that compute on the CPU need each level there: it is drawn where they are.
        self.record = self.record if self._level else self.record.on(logits.device)
        logits = moved(logits, self.record.device)
        batch, leaves, vocab = logits.shape
        counts = self._counts()
        width = max(counts)
        flat = logits.reshape(batch * leaves, vocab)
        prefixes = self._node_prefixes(leaves) if self.to_probs.needs_prefix else None
        if self.to_probs.greedy:
            scores = self.to_probs.scores(flat, prefixes).view(batch, leaves, vocab)
            tokens, parents = self._best(scores, width)
        else:
            q = self.to_probs(flat, prefixes).view(batch, leaves, vocab)
            tokens, parents = self._sampled(q, width)
        self.record.write_columns(self._drawn, tokens)
        first = self._drawn - self._before  # the number of the first node of the level before
        parents = parents + first if self._level else torch.full_like(parents, -1)
        self._parents.append(parents)
        self._level += 1
        self._drawn, self._before, self._last = self._drawn + width, width, counts
        return Branches(tokens, parents, counts)

    def _counts(self) -> tuple[int, ...]:
        """Return the number of nodes of each sequence in the next level."""
        if self._level == len(self.shape.widths):
            return (0,) * len(self.budget)
        width = self.shape.widths[self._level]
        return tuple(min(width, max(most - self._drawn, 0)) for most in self.budget)

    def _parents_and_ranks(self, width: int) -> tuple[list[int], list[int]]:
        """Return, for each node of the next level of a `TokenTree`, the index of its parent and its own rank."""
        assert isinstance(self.shape, TokenTree)
        nodes = range(self._drawn, self._drawn + width)
        first = self._drawn - self._before
        parents = [self.shape.parents[node] - first if self._level else 0 for node in nodes]
        return parents, [self.shape.ranks[node] for node in nodes]

    def _best(self, scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and the indices of their parents, each `[B, M]`, for greedy drafts."""
        batch, leaves, vocab = scores.shape
        if isinstance(self.shape, TokenTree):
            parents, ranks = self._parents_and_ranks(width)
            best = scores.topk(min(max(ranks) + 1, vocab), dim=2).indices
            ranks = [min(rank, vocab - 1) for rank in ranks]
            index = _index(parents, scores.device)
            return best[:, index, _index(ranks, scores.device)], index.expand(batch, -1)
        paths = torch.log_softmax(scores, dim=2) + self._path_weights(leaves, scores.device).log()[..., None]
        weights, index = paths.view(batch, -1).topk(min(width, leaves * vocab), dim=1)
        if index.shape[1] < width:  # these are all paths: repeat the last
            nodes = torch.arange(width, device=index.device).clamp(max=index.shape[1] - 1)
            weights, index = weights[:, nodes], index[:, nodes]
        self._weights = weights.exp()
        return index % vocab, index // vocab

    def _sampled(self, q: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and the indices of their parents, each `[B, M]`, drawn without replacement."""
        left = q.clone()  # without the tokens that were drawn
        if self._uniforms is None:
            self._uniforms = uploaded(self.numbers(), q.device, torch.float64)
        uniforms = self._uniforms[:, self._drawn : self._drawn + width]
        batch, leaves, _ = q.shape
        drawn: list[Tensor] = []
        if isinstance(self.shape, TokenTree):
            parents, ranks = self._parents_and_ranks(width)
            order: list[int] = []
            for rank in range(max(ranks) + 1):
                own = [node for node, other in enumerate(ranks) if other == rank]
                at = _index([row * leaves + parents[node] for row in range(batch) for node in own], q.device)
                drawn.append(self._draw(q, left, at, uniforms[:, _index(own, q.device)], own))
                order += own
            places = _index([order.index(node) for node in range(width)], q.device)
            return torch.cat(drawn, dim=1)[:, places], _index(parents, q.device).expand(batch, -1)
        weights, rows = self._path_weights(leaves, q.device), _index(range(batch), q.device)
        chosen = []
        for node in range(width):
            best = (weights * left.sum(dim=2)).argmax(dim=1)
            drawn.append(self._draw(q, left, rows * leaves + best, uniforms[:, node : node + 1], [node]))
            chosen.append(best)
        parents_at, tokens = torch.stack(chosen, dim=1), torch.cat(drawn, dim=1)
        self._weights = weights.gather(1, parents_at) * q[rows[:, None], parents_at, tokens]
        return tokens, parents_at

    def _draw(self, q: Tensor, left: Tensor, at: Tensor, uniforms: Tensor, nodes: Sequence[int]) -> Tensor:
        """Draw a child of some nodes, `[B, C]`; record its q, and take it out of `left`.

        Args:
            q: `[B, P, V]`, the distributions after the nodes of the level before.
            left: The same, not normalized and without the tokens that were drawn.
            at: `[B * C]`, the numbers of the C parents of each row among all B * P nodes.
            uniforms: `[B, C]`.
            nodes: The numbers of the C children in their level.
        """
        left = left.flatten(0, 1)
        weights = left.index_select(0, at)
        total = weights.sum(dim=1, keepdim=True)
        chances = torch.where(total > 0, weights / total, q.flatten(0, 1).index_select(0, at))
        tokens = draw(chances, uniforms.flatten())
        columns = _index([node + self._drawn for node in nodes], q.device)
        self.record.write_q(columns, chances.view(*uniforms.shape, -1))
        left[at, tokens] = 0
        return tokens.view(uniforms.shape)

    def _path_weights(self, leaves: int, device: torch.device) -> Tensor:
        """Return the probability of the path to each node of the level before, `[B, P]`; 0 where there is none."""
        if self._weights is None:
            return torch.ones(len(self.budget), leaves, device=device)
        last = uploaded(self._last, device)[:, None]
        return self._weights * (torch.arange(leaves, device=device) < last)

    def _node_prefixes(self, leaves: int) -> list[list[int]]:
        """Return the text before the continuations of each node of the level before, row by row."""
        if not self._level:
            return [list(row) for row in self.prefixes]
        tokens = self.record.columns(self._drawn).tolist()
        parents = torch.cat(self._parents, dim=1).tolist()
        trees = zip(self.prefixes, tokens, parents, strict=True)
        return [[*row, *path] for row, *tree in trees for path in all_paths(*tree)[-leaves:]]


def all_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """Return the tokens of the path to each node of a tree, after the empty path to its root."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths


def _index(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return numbers of nodes as an index that others share: a shape uses the same ones in each step."""
    return _uploaded_once(tuple(numbers), device)


_uploaded_once = lru_cache(maxsize=1024)(uploaded)
