"""Algorithm 1 on a CPU for the proposals of most steps, one sequence at a time.

After a forward pass has evicted the processor's caches, each small tensor operation takes 10 to 20 us, and
`accept` has thirty of them. These functions give the same result with a handful, and look only at the positions up
to the first rejection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import draw_from_row


def supported(proposal: Proposal, values: Tensor, lenience: Tensor | None) -> bool:
    """Return whether a proposal can be verified here: a line on a CPU, and no lenience.

    Args:
        proposal: Draft tokens `[B, K]`, lengths and q.
        values: p or scores, `[B, K + 1, V]`.
        lenience: None for 1.
    """
    return values.device.type == "cpu" and proposal.parents is None and lenience is None


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
        if total == 0 and n < len(draft):
            # p equals q up to rounding; the draft token itself is then a draw from p, unless p excludes it.
            token = draft[n] if p_row[n, draft[n]] > 0 else int(p_row[n].argmax())
        made.append((n, token, total > 0 or (total == 0 and n < len(draft))))
    return _result(made)


def accept_greedy_on_cpu(proposal: Proposal, scores: Tensor) -> AcceptanceResult:
    """Accept the draft tokens that are the argmax; see `accept_greedy`.

    Args:
        proposal: A `supported` proposal; its q is not read.
        scores: `[B, K + 1, V]` float32, the target's scores after its logits processors.
    """
    values = scores.numpy()
    best, drafts = values.argmax(axis=2).tolist(), proposal.tokens.tolist()
    made = []
    for row, choices in enumerate(best):
        n = 0
        while n < proposal.lengths[row] and drafts[row][n] == choices[n]:
            n += 1
        made.append((n, choices[n], math.isfinite(values[row, n, choices[n]])))
    return _result(made)


def _result(rows: Sequence[tuple[int, int, bool]]) -> AcceptanceResult:
    """Return the result from the accepted tokens, the next one, and whether it is sound, of each sequence."""
    accepted, token, sound = torch.tensor(rows).unbind(dim=1)
    return AcceptanceResult(accepted, token, sound.bool())
