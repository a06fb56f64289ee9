"""The draft of a row as checks look at it, and the form that they require."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.decoding.validation import BAD_PARENT, FAULTS
from specdec_core.interface import Dense, PluginError, PointMass, Proposal


@dataclass(frozen=True, eq=False)
class Draft:
    """The draft of one row.

    Attributes:
        tokens: Its tokens.
        q: For each token, the distribution it was drawn from: `[V]` float64 on the CPU, a copy.
        parents: For trees, the number of each token's parent; None for a line.
    """

    tokens: tuple[int, ...]
    q: tuple[Tensor, ...]
    parents: tuple[int, ...] | None = None

    def path(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the tokens on a path of `count` tokens, or on the longest if that is shorter.

        Of the paths of a tree it is the last, whose tokens do not follow each other.
        """
        paths: list[tuple[int, ...]] = [()]
        for number in range(len(self.tokens)):
            parent = number - 1 if self.parents is None else self.parents[number]
            paths.append((*paths[parent + 1], number))
        longest = min(count, max(map(len, paths)))
        return next(path for path in reversed(paths) if len(path) == longest)


def drafts_of(proposal: Proposal, vocab_size: int) -> list[Draft]:
    """Return the draft of each row, whether or not it is valid.

    Args:
        proposal: A proposal of the right form.
        vocab_size: V. Ids outside are left out of q, which then sums to less than 1.
    """
    q, tokens = _dense(proposal, vocab_size), proposal.tokens.tolist()
    parents = None if proposal.parents is None else proposal.parents.tolist()
    return [
        Draft(tuple(tokens[row][:n]), tuple(q[row, :n]), None if parents is None else tuple(parents[row][:n]))
        for row, n in enumerate(proposal.lengths)
    ]


def _dense(proposal: Proposal, vocab_size: int) -> Tensor:
    """Return q at every position, `[B, K, V]` float64 on the CPU, a copy."""
    q = proposal.q
    if isinstance(q, Dense):
        return q.probabilities.detach().double().cpu().clone()
    if isinstance(q, PointMass):
        ids = proposal.tokens[..., None].cpu()
        weights = torch.ones(ids.shape, dtype=torch.float64)
    else:
        ids, weights = q.ids.cpu(), q.probabilities.double().cpu()
    ids = torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)
    dense = torch.zeros(*proposal.tokens.shape, vocab_size + 1, dtype=torch.float64)  # the last: ids outside of V
    dense.scatter_add_(2, ids, weights)
    return dense[..., :-1]


def id_outside(proposal: Proposal, vocab: int) -> str:
    """Return which draft token, or id that q lists for one, is not in the vocabulary; empty if all are."""
    listed = getattr(proposal.q, "ids", None)
    for row, length in enumerate(proposal.lengths):
        ids = proposal.tokens[row, :length].tolist()
        if listed is not None:
            ids += listed[row, :length].flatten().tolist()
        outside = [token for token in ids if not 0 <= token < vocab]
        if outside:
            return f"id {outside[0]} in row {row}"
    return ""


def require_paths(proposal: Proposal, depth: Sequence[int], *, tree: bool) -> None:
    """Reject a tree where a line was asked for, wrong parents, and paths that are too long."""
    if proposal.parents is not None and not tree:
        raise PluginError(
            f"parents {proposal.parents.tolist()} were proposed, but a line was asked for "
            "(`DraftRequest.tree` was None)."
        )
    for row, (length, limit) in enumerate(zip(proposal.lengths, depth, strict=True)):
        depths: list[int] = []
        for number in range(length):
            parent = number - 1 if proposal.parents is None else int(proposal.parents[row, number])
            if not -1 <= parent < number:
                raise PluginError(f"token {number} of row {row} has the parent {parent}: {FAULTS[BAD_PARENT]}")
            depths.append(1 if parent < 0 else depths[parent] + 1)
        if max(depths, default=0) > limit:
            raise PluginError(f"a path of {max(depths)} tokens was proposed for row {row}; its depth was {limit}.")
