"""Drafts whose tokens are all predicted at once."""

from __future__ import annotations

from torch import Tensor

from specdec_core.interface import DraftRequest, Proposal


def draw_at_each_depth(request: DraftRequest, logits: Tensor) -> Proposal:
    """Draw a draft from distributions that do not depend on its tokens.

    In a tree, all nodes at a depth are drawn from one distribution.

    Args:
        request: The request.
        logits: `[B, K, V]`, of the tokens at each depth.
    """
    nodes = 1
    for scores in logits.unbind(1):
        if not request.wants_more():
            break
        if request.tree is None:
            request.sample(scores)
        else:
            nodes = request.branch(scores[:, None].expand(-1, nodes, -1)).tokens.shape[1]
    return request.proposal()
