"""Acceptance rates from the distributions of target and drafter.

p is the target's distribution and q the drafter's, both after sampling settings (section 2.2), as arrays `[...,
V]` of the same shape: one distribution per prefix. Results are `[...]`, one number per prefix.

These functions compute expectations; `specdec_core.verification` accepts and rejects tokens, on tensors.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
"""A float64 array of any shape."""

_TOLERANCE = 1e-4
"""Tolerance of sums: float32 over a large vocabulary is within it, a missing token is not."""


def lk_divergence(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return D_LK(p, q) = sum_x |p(x) - M(x)| with M = (p + q) / 2, so sum_x |p(x) - q(x)| / 2.

    By Lemma 3.3 it equals 1 - sum_x min(p(x), q(x)). It is symmetric, 0 for equal distributions and 1 for those
    that share no token (Corollary 3.4); elsewhere it is called the total variation distance.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.

    Returns:
        `[...]`, in [0, 1].

    Raises:
        ValueError: If p or q are not distributions of the same shape.

    References:
        Definition 3.2 and Lemma 3.3, section 3.2.
    """
    p, q = _distributions(p, q)
    divergence: Floats = np.minimum(np.abs(p - q).sum(axis=-1) / 2, 1.0)
    return divergence


def acceptance_rate(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return beta = 1 - D_LK(p, q) = sum_x min(p(x), q(x)): the probability that a token drawn from q is accepted.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.

    Returns:
        `[...]`, in [0, 1].

    Raises:
        ValueError: If p or q are not distributions of the same shape.

    References:
        Definition 3.1 and Theorem 3.5, sections 3.1 and 3.2.
    """
    p, q = _distributions(p, q)
    beta: Floats = np.minimum(np.minimum(p, q).sum(axis=-1), 1.0)
    return beta


def lenient_acceptance_rate(p: ArrayLike, q: ArrayLike, lenience: ArrayLike) -> Floats:
    """Return b(l) = sum_x min(p(x) / l, q(x)): the probability that a token is accepted with lenience l.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.
        lenience: l in (0, 1], a number or `[...]`. At 1 the result is beta.

    Returns:
        `[...]`, in [0, 1].

    Raises:
        ValueError: If p or q are not distributions of the same shape, or l is out of range.

    References:
        Appendix A.5; the last expression of its formula for alpha.
    """
    p, q = _distributions(p, q)
    b: Floats = np.minimum(_accepted(p, q, lenience).sum(axis=-1), 1.0)
    return b


def lenient_deviation(p: ArrayLike, q: ArrayLike, lenience: ArrayLike) -> Floats:
    """Return b(l) - b(1): the total variation from p of the committed token with lenience l.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.
        lenience: l in (0, 1], a number or `[...]`.

    Returns:
        `[...]`, at least 0; 0 at l = 1.

    Raises:
        ValueError: If p or q are not distributions of the same shape, or l is out of range.

    References:
        Appendix A.5 with the residual norm(max(0, p - q)); derived in `specdec_core.verification.lenience`.
    """
    p, q = _distributions(p, q)
    # A sum of nonnegative differences, not a difference of sums, which may cancel.
    deviation: Floats = (_accepted(p, q, lenience) - np.minimum(p, q)).sum(axis=-1)
    return deviation


def lenient_distribution(p: ArrayLike, q: ArrayLike, lenience: ArrayLike = 1.0) -> Floats:
    """Return P, the distribution of the committed token: min(p / l, q) + (1 - b(l)) norm(max(0, p - q)).

    With l = 1 it is p for any q (appendix A.1). P(x) is never above p(x) / l.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.
        lenience: l in (0, 1], a number or `[...]`.

    Returns:
        `[..., V]`.

    Raises:
        ValueError: If p or q are not distributions of the same shape, or l is out of range.

    References:
        Appendices A.1 and A.5.
    """
    p, q = _distributions(p, q)
    accepted = _accepted(p, q, lenience)
    residual = np.maximum(0, p - q)
    total = residual.sum(axis=-1, keepdims=True)
    rejected = np.maximum(0, 1 - accepted.sum(axis=-1, keepdims=True))
    committed: Floats = accepted + rejected * np.divide(residual, total, out=np.zeros_like(p), where=total > 0)
    return committed


def greedy_acceptance_rate(p: ArrayLike, q: ArrayLike, lenience: ArrayLike = 1.0) -> Floats:
    """Return the probability that a token drawn from q is accepted in greedy decoding: that p(x) >= l max p.

    Lenience acts before p becomes one-hot. The paper prints the inequality the other way round. At l = 1 only the
    argmax of p is accepted, the first if several are equal.

    Args:
        p: `[..., V]`, the softmax of the target's scores.
        q: `[..., V]`, the distribution of the draft: one-hot for a greedy drafter.
        lenience: l in (0, 1], a number or `[...]`.

    Returns:
        `[...]`, in [0, 1].

    Raises:
        ValueError: If p or q are not distributions of the same shape, or l is out of range.

    References:
        Appendix A.5, its last paragraph.
    """
    p, q = _distributions(p, q)
    share = _lenience(lenience)
    best = p.argmax(axis=-1)[..., None] == np.arange(p.shape[-1])
    granted = (share < 1) & (p >= share * p.max(axis=-1, keepdims=True))
    accepted: Floats = np.minimum((q * (best | granted)).sum(axis=-1), 1.0)
    return accepted


def rejection_acceptance_rate(p: ArrayLike, q: ArrayLike) -> Floats:
    """Return the acceptance rate of rejection sampling, 1 / M with M = max_x p(x) / q(x).

    It is at most beta, and 0 as soon as q excludes a token that p does not; speculative sampling has no such
    cliff.

    Args:
        p: `[..., V]`, the target's distributions.
        q: `[..., V]`, the drafter's.

    Returns:
        `[...]`, in [0, 1].

    Raises:
        ValueError: If p or q are not distributions of the same shape.

    References:
        Appendix A.2: sum_x p(x) min_x' q(x') / p(x').
    """
    p, q = _distributions(p, q)
    # Tokens with p = 0 do not count, and tiny p make quotients overflow; only the smallest matters.
    with np.errstate(over="ignore"):
        ratio = np.divide(q, p, out=np.full_like(p, np.inf), where=p > 0)
    smallest: Floats = np.minimum(ratio.min(axis=-1), 1.0)
    return smallest


def _accepted(p: Floats, q: Floats, lenience: ArrayLike) -> Floats:
    """Return the probability that each token is drafted and accepted, min(p / l, q), `[..., V]`."""
    with np.errstate(over="ignore"):  # p / l overflows for tiny l; then q is the minimum
        return np.minimum(p / _lenience(lenience), q)


def _distributions(p: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats]:
    """Check that p and q are distributions of the same shape, and return them as float64 arrays.

    Args:
        p: `[..., V]`, the target's.
        q: `[..., V]`, the drafter's.

    Raises:
        ValueError: If they are not, with what is wrong and where.
    """
    first, second = _distribution("p", p), _distribution("q", q)
    if first.shape != second.shape:
        raise ValueError(
            f"p and q must have the same shape [..., V], with the same vocabulary; "
            f"given {list(first.shape)} and {list(second.shape)}"
        )
    return first, second


def _distribution(name: str, given: ArrayLike) -> Floats:
    array = np.asarray(given, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"{name} must be [..., V], a probability for each token; given shape {list(array.shape)}")
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        raise ValueError(f"{name} must hold probabilities; given {array[wrong][0]:g}")
    totals = array.sum(axis=-1)
    wrong = np.abs(totals - 1) > _TOLERANCE
    if wrong.any():
        raise ValueError(f"{name} must sum to 1 over the vocabulary; it sums to {totals[wrong].flat[0]:g}")
    return array


def _lenience(given: ArrayLike) -> Floats:
    share = np.asarray(given, dtype=np.float64)
    wrong = ~((share > 0) & (share <= 1))
    if wrong.any():
        raise ValueError(f"lenience must be in (0, 1]; given {share[wrong].flat[0]:g}")
    return share[..., None]
