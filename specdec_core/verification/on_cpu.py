"""Algorithm 1 on a CPU for the proposals of most steps, one sequence at a time.

After a forward pass has evicted the processor's caches, each small tensor operation takes 10 to 20 us, and
`accept` has twenty of them. `accept_on_cpu` gives the same result with a handful, and looks only at the positions
up to the first rejection.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import draw_from_row


def supported(proposal: Proposal, p: Tensor, lenience: Tensor | None) -> bool:
    """Return whether a proposal can be verified here: a line on a CPU, and no lenience.

    Args:
        proposal: Draft tokens `[B, K]`, lengths and q.
        p: `[B, K + 1, V]`.
        lenience: None for 1.
    """
    return p.device.type == "cpu" and proposal.parents is None and lenience is None


def accept_on_cpu(proposal: Proposal, p: Tensor, uniforms: Tensor) -> AcceptanceResult:
    """Accept or reject each draft token, and draw the token that follows; see `accept`.

    Args:
        proposal: A `supported` proposal.
        p: `[B, K + 1, V]` float32, the target's adjusted distribution at each position.
        uniforms: `[B, K + 1]` float64: r_1 ... r_K, then the number that draws the next token.
    """
    q = None if isinstance(proposal.q, PointMass) else proposal.q.probabilities.float().numpy()
    ids = proposal.q.ids.numpy() if isinstance(proposal.q, Sparse) else None
    drafts, numbers = proposal.tokens.tolist(), uniforms.tolist()
    made = []
    for row, p_row in enumerate(p.numpy()):
        draft, r = drafts[row][: proposal.lengths[row]], numbers[row]
        n = 0
        for x in draft:
            if q is None:
                q_x = 1.0
            elif ids is None:
                q_x = float(q[row, n, x])
            else:
                q_x = float(q[row, n, ids[row, n] == x].sum())
            if not r[n] * q_x < float(p_row[n, x]):  # in float64, as in `accept`; numpy would round to float32
                break
            n += 1
        weights = p_row[n]
        if n < len(draft):
            weights = weights.copy()
            if q is None:
                weights[draft[n]] -= 1
            elif ids is None:
                weights -= q[row, n]
            else:
                np.subtract.at(weights, ids[row, n], q[row, n])  # padding repeats ids
            np.maximum(weights, 0, out=weights)
        token, total = draw_from_row(weights, r[-1])
        if total == 0:  # p equals q up to rounding
            token, total = draw_from_row(p_row[n], r[-1])
        made.append((n, token, total > 0))
    columns = torch.tensor(made).unbind(dim=1)
    return AcceptanceResult(columns[0], columns[1], columns[2].bool())
