"""The numbers that decided a verification, for observers that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_core.interface import Proposal
from specdec_core.interface.outcome import DraftTest, Verification
from specdec_core.verification import dense

if TYPE_CHECKING:
    from specdec_core.decoding.answer import Answered

_TOP = 5
"""Tokens of a distribution that are kept."""


def verifications(
    proposal: Proposal,
    p: Tensor,
    lenience: Sequence[Sequence[float]] | None,
    numbers: Sequence[Sequence[float]],
    verified: Answered,
    *,
    algorithm_1: bool,
) -> tuple[Verification, ...]:
    """Return how each draft was verified.

    Args:
        proposal: The draft `[B, K]`.
        p: `[B, K + 1, V]` float32, the target's distributions that the rule compared with.
        lenience: l of each position, `[B][K]`; None for 1.
        numbers: `[B][K + 1]`, the random numbers; empty for greedy decoding.
        verified: The outcome. What was accepted is read from it, and not decided again.
        algorithm_1: Whether Algorithm 1 decided.
    """
    q = dense(proposal.q, proposal.tokens, p.shape[2]).float().cpu()
    p = p.cpu()

    def of_row(row: int) -> Verification:
        draft = verified.draft[row]
        parents = range(-1, len(draft) - 1) if verified.parents is None else verified.parents[row]
        path = range(verified.accepted[row]) if verified.paths is None else verified.paths[row]
        tests: list[DraftTest] = []
        last, left = -1, p[row, 0]  # the last accepted node, and what its next child meets, `[V]`
        for node, (x, parent) in enumerate(zip(draft, parents, strict=True)):
            if parent != last:
                continue
            q_x = q[row, node]
            taken, lenient = node in path, 1.0 if lenience is None else lenience[row][node]
            r = numbers[row][node] if numbers else None
            tests.append(DraftTest(x, float(left[x]), float(q_x[x]), r, lenient, taken, _top(left, q_x, x)))
            if taken:
                last, left = node, p[row, node + 1]
            elif algorithm_1 and numbers:
                weights = (left - q_x).clamp(min=0)
                left = weights / weights.sum() if weights.sum() > 0 else left  # p equals q up to rounding
        drawn = tuple(
            (token, share) for token, share, _ in _top(left, torch.zeros_like(left), verified.token[row])
        )
        return Verification(tuple(tests), numbers[row][-1] if numbers else None, drawn, algorithm_1)

    return tuple(map(of_row, range(len(p))))


def _top(p: Tensor, q: Tensor, x: int) -> tuple[tuple[int, float, float], ...]:
    """Return the most probable tokens under p or q with both, and x among them; none that both exclude but x."""
    best = torch.maximum(p, q).topk(min(_TOP, len(p))).indices.tolist()
    if x not in best:
        best[-1] = x
    return tuple((token, float(p[token]), float(q[token])) for token in best if p[token] or q[token] or token == x)
