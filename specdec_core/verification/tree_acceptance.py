"""Algorithm 1 on a token tree: multi-draft verification, from the committed text to where no child is accepted.

The children of a node are tried one after the other. Child i, drawn from q_i given the children before it, is
accepted with probability min(1, p_i(x) / q_i(x)); after a rejection the next one meets

    p_(i+1) = norm(max(0, p_i - q_i)),

where p_1 is the target's distribution there. Whatever the children before child i were, the token that follows
(one of the remaining children, or a draw from what is left after them) has the distribution p_i: by induction from
the last child to the first, which is appendix A.1 of arXiv 2211.17192 at each. Nothing is asked of q_i but that
child i was drawn from it: from the same q for siblings drawn with replacement, from the rest of it for those drawn
without, from a point mass where it was chosen.

References:
    SpecInfer, recursive rejection sampling with replacement (arXiv 2305.09781); Yang et al. 2024, multi-candidate
    speculative decoding, and Sequoia, without replacement (arXiv 2401.06706, 2402.12374).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, Proposal
from specdec_core.sampling.logits import argmax
from specdec_core.verification.distributions import density, drafted, draw_next, ragged, residual


def accept_tree(proposal: Proposal, p: Tensor, uniforms: Tensor) -> AcceptanceResult:
    """Follow the accepted nodes of a tree, and draw the token after them.

    Args:
        proposal: Draft tokens `[B, K]` with parents, lengths, and q in any form.
        p: `[B, K + 1, V]` float32, the target's adjusted distributions: after the committed tokens, and after each
            node.
        uniforms: `[B, K + 1]` float64: a number for each node, then the one that draws the next token.

    Returns:
        The result, with the path. What lies beyond a sequence's length does not affect it, provided that it is
        finite.
    """
    width = proposal.tokens.shape[1]
    numbers = uniforms[:, :width] * density(proposal.q, proposal.tokens)
    left = p[:, 0]  # what the next child meets, `[B, V]`

    def test(node: int, here: Tensor) -> Tensor:
        nonlocal left
        p_x = left.gather(1, proposal.tokens[:, node : node + 1])[:, 0]
        taken = here & (numbers[:, node] < p_x)
        rejected = here ^ taken
        weights = residual(left, proposal, node, rejected)
        after = weights / weights.sum(dim=1, keepdim=True)
        left = torch.where(taken[:, None], p[:, node + 1], torch.where(rejected[:, None], after, left))
        return taken

    accepted, path, _ = _follow(proposal, test)
    token, sound = draw_next(left, uniforms[:, width])
    return AcceptanceResult(accepted, token, sound, path=path)


def accept_tree_greedy(proposal: Proposal, scores: Tensor) -> AcceptanceResult:
    """Follow the nodes of a tree that are the argmax: `accept_tree` with a one-hot p, by comparing tokens.

    Args:
        proposal: Draft tokens `[B, K]` with parents, and lengths.
        scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
    """
    best = argmax(scores)
    assert proposal.parents is not None
    matches = proposal.tokens == best.gather(1, proposal.parents + 1)
    accepted, path, last = _follow(proposal, lambda node, here: here & matches[:, node])
    token = best.gather(1, last[:, None] + 1)
    rows = torch.arange(len(token), device=token.device)
    largest = scores[rows, last + 1].gather(1, token)[:, 0]
    return AcceptanceResult(accepted, token[:, 0], largest.isfinite(), path=path)


def _follow(proposal: Proposal, test: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Visit the children of each accepted node in order.

    Args:
        proposal: The tree.
        test: Takes a node and `[B]` bool, the rows in which its parent is the last accepted node; returns in which
            of them it is accepted.

    Returns:
        The number of accepted nodes `[B]`, their numbers `[B, K]`, padded with 0, and the last one `[B]` or -1.
    """
    assert proposal.parents is not None
    parents, device = proposal.parents, proposal.tokens.device
    batch, width = proposal.tokens.shape
    if ragged(proposal):
        parents = torch.where(drafted(proposal), parents, _NOBODY)
    last = torch.full((batch,), -1, device=device)
    rejected = torch.ones(batch, width, dtype=torch.bool, device=device)
    for node in range(width):
        here = parents[:, node] == last
        if device.type == "cpu" and not here.any():
            continue  # most nodes; elsewhere, asking would wait for the device
        taken = test(node, here)
        rejected[:, node] = ~taken
        last.masked_fill_(taken, node)
    # Nodes come after their parents, so that those of a path are in its order.
    path = rejected.byte().argsort(dim=1, stable=True)
    accepted = width - rejected.sum(dim=1)
    return accepted, path.masked_fill_(torch.arange(width, device=device) >= accepted[:, None], 0), last


_NOBODY = -2
"""The parent of the columns beyond the nodes of a row."""
