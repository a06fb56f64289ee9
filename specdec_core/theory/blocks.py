"""Expected acceptance of a whole draft under each rule, by enumeration of every draft on a small vocabulary.

p and q are lists with an array for each position: `p[i]` is `[V, ..., V]` with i + 1 axes, the target's
distribution after each draft of i tokens, and `q[i]` the drafter's. For gamma draft tokens, q has gamma arrays and
p at least as many. Results are `[gamma]`: the probability that at least 1, 2 ... gamma draft tokens are accepted.
Their sum is the expected number of accepted tokens, and with 1 added that of tokens per step.

References:
    Leviathan et al. 2023 (arXiv 2211.17192). Sun et al., block verification (arXiv 2403.10444). Sun et
    al., SpecTr, for acceptance as optimal transport (arXiv 2310.15141).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from specdec_core.theory.divergence import Floats, distributions

Block: TypeAlias = Sequence[ArrayLike]
"""Distributions after every draft, an array for each position."""


def token_acceptance(p: Block, q: Block) -> Floats:
    """Return the acceptance of Algorithm 1: each token by itself, with probability min(1, p(x) / q(x)).

    Args:
        p: The target's distributions.
        q: The drafter's.

    Raises:
        ValueError: p or q are not distributions of matching shapes.

    References:
        Algorithm 1 of arXiv 2211.17192; with one token, sum_x min(p, q) of Theorem 3.5.
    """
    return _accepted(p, q, lambda kept, p_i, q_i: kept * np.minimum(1, _ratio(p_i, q_i)))


def block_acceptance(p: Block, q: Block) -> Floats:
    """Return what block verification accepts: a prefix with probability c_i = min(1, c_{i-1} p(x_i) / q(x_i)).

    It is at least `token_acceptance` at every position, and the most that a lossless rule can reach which knows p
    and q after the prefixes of the draft only.

    Args:
        p: The target's distributions.
        q: The drafter's.

    Raises:
        ValueError: p or q are not distributions of matching shapes.

    References:
        Theorem 2 of arXiv 2403.10444.
    """
    return _accepted(p, q, lambda kept, p_i, q_i: np.minimum(1, kept * _ratio(p_i, q_i)))


def rejection_acceptance(p: Block, q: Block) -> Floats:
    """Return what rejection sampling accepts: each token with probability p(x) / (M q(x)), M = max_x p(x) / q(x).

    Args:
        p: The target's distributions.
        q: The drafter's.

    Raises:
        ValueError: p or q are not distributions of matching shapes.

    References:
        Appendix A.2 of arXiv 2211.17192.
    """

    def keep(kept: Floats, p_i: Floats, q_i: Floats) -> Floats:
        with np.errstate(over="ignore"):
            share = np.divide(q_i, p_i, out=np.full_like(p_i, np.inf), where=p_i > 0).min(axis=-1, keepdims=True)
        accepted: Floats = kept * np.minimum(1, _ratio(p_i, q_i) * np.minimum(1, share))
        return accepted

    return _accepted(p, q, keep)


def transport_bound(p: Block, q: Block) -> Floats:
    """Return the most that any lossless rule can accept: sum_x min(P(x_1 ... x_i), Q(x_1 ... x_i)).

    P and Q are the distributions of the first i tokens. A coupling of P and Q agrees on them with a probability of
    1 - TV(P, Q) at most. The optimal transport reaches that for all i at once, since prefixes form a tree; it
    takes a verifier that also knows p and q after undrawn drafts. With one token, Algorithm 1 reaches it.

    Args:
        p: The target's distributions.
        q: The drafter's.

    Raises:
        ValueError: p or q are not distributions of matching shapes.

    References:
        Section 2 of arXiv 2403.10444; arXiv 2310.15141.
    """
    found = []
    joint_p, joint_q = np.ones(()), np.ones(())
    for p_i, q_i in _checked(p, q):
        joint_p, joint_q = joint_p[..., None] * p_i, joint_q[..., None] * q_i
        found.append(float(np.minimum(joint_p, joint_q).sum()))
    return np.array(found)


def allowed_acceptance(p: ArrayLike, q: ArrayLike, allowed: ArrayLike) -> tuple[Floats, Floats]:
    """Return what a rule that accepts a set of tokens reaches at one position, and its deviation from p.

    With a(x) = 1 for allowed tokens it accepts with probability b = sum a q and deviates by
    E = sum max(0, a q - p) in total variation. b - E = sum min(a q, p) <= sum min(q, p): beyond what a lossless
    rule accepts, a unit of acceptance costs at least a unit of deviation.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.
        allowed: `[..., V]` bool, the accepted tokens.

    Returns:
        b and E, each `[...]`.

    Raises:
        ValueError: p or q are not distributions of the same shape.

    References:
        Proof in `specdec_core.verification.allowing`.
    """
    p, q = distributions(p, q)
    drafted = q * np.asarray(allowed, dtype=bool)
    return drafted.sum(axis=-1), np.maximum(0, drafted - p).sum(axis=-1)


def _accepted(p: Block, q: Block, keep: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
    """Return the mean over all drafts of the probability that each prefix is kept."""
    found = []
    drafted, kept = np.ones(()), np.ones(())
    for p_i, q_i in _checked(p, q):
        kept = keep(kept[..., None], p_i, q_i)
        drafted = drafted[..., None] * q_i
        found.append(float((drafted * kept).sum()))
    return np.array(found)


def _ratio(p: Floats, q: Floats) -> Floats:
    """Return p / q; 0 where q is 0, which is never drafted."""
    with np.errstate(over="ignore"):
        ratio: Floats = np.divide(p, q, out=np.zeros_like(p), where=q > 0)
    return ratio


def _checked(p: Block, q: Block) -> list[tuple[Floats, Floats]]:
    if not len(q) <= len(p):
        raise ValueError(f"p must have an array for each of q; given {len(p)} and {len(q)}")
    pairs = [distributions(p_i, q_i) for p_i, q_i in zip(p, q, strict=False)]
    for index, (p_i, _) in enumerate(pairs):
        vocab_size = pairs[0][0].shape[-1]
        if p_i.shape != (vocab_size,) * (index + 1):
            raise ValueError(
                f"p[{index}] and q[{index}] must have {index + 1} axes of {vocab_size} tokens each; given shape "
                f"{list(p_i.shape)}"
            )
    return pairs
