"""What a proposal says of each row: its tokens, and the distribution that each was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.border import Dense, Distribution, PointMass, Proposal, Sparse


@dataclass(frozen=True, eq=False)
class Draft:
    """The draft of one row.

    Attributes:
        tokens: Its tokens.
        q: For each of them `[V]` float64 on the CPU, a copy: what it was drawn from.
    """

    tokens: tuple[int, ...]
    q: tuple[Tensor, ...]


def drafts_of(proposal: Proposal, vocab_size: int) -> list[Draft]:
    """Return what a proposal says of each row, whether or not it is legal.

    Args:
        proposal: Of the right form.
        vocab_size: V. What q gives to ids outside is left out, and so misses in its sum.
    """
    rows = []
    for row, length in enumerate(proposal.lengths):
        tokens = proposal.tokens[row, :length].tolist()
        q = [_written(proposal.q, row, place, token, vocab_size) for place, token in enumerate(tokens)]
        rows.append(Draft(tuple(tokens), tuple(q)))
    return rows


def _written(q: Distribution, row: int, place: int, token: int, vocab_size: int) -> Tensor:
    """Write out q at one position, `[V]` float64."""
    if isinstance(q, Dense):
        return q.probabilities[row, place].detach().double().cpu().clone()
    if isinstance(q, PointMass):
        return _filled(vocab_size, [token], [1.0])
    ids, weights = q.ids[row, place].tolist(), q.probabilities[row, place].double().tolist()
    if isinstance(q, Sparse):
        return _filled(vocab_size, ids, weights)
    background = q.background.detach().double().cpu() * float(q.scale[row, place])
    listed = [token for token in ids if 0 <= token < vocab_size]
    background[listed] = 0
    last = dict(zip(ids, weights, strict=True))
    return background + _filled(vocab_size, list(last), list(last.values()))


def _filled(vocab_size: int, ids: Sequence[int], weights: Sequence[float]) -> Tensor:
    written = torch.zeros(vocab_size, dtype=torch.float64)
    for token, weight in zip(ids, weights, strict=True):
        if 0 <= token < vocab_size:
            written[token] += weight
    return written
