"""What theory predicts (section 3 of arXiv 2211.17192). Importing this imports no torch.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192.
"""

from __future__ import annotations

import math


def expected_tokens(alpha: float, gamma: float) -> float:
    """Return the expected number of tokens of one step: (1 - alpha^(gamma+1)) / (1 - alpha).

    Deviation: the paper's gamma is a whole number; a mean over steps of different lengths is taken as well.

    Args:
        alpha: Expected acceptance rate E(beta), in [0, 1]; at 1 the limit gamma + 1 is returned.
        gamma: Tokens drafted in a step, at least 0; with 0 a step yields one token.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Equation (1), section 3.1.
    """
    _check("alpha", alpha, 1.0)
    _check("gamma", gamma, math.inf)
    if alpha == 1:
        return gamma + 1
    if alpha == 0:
        return 1.0
    # expm1 and log1p keep the quotient right where alpha is so near 1 that both differences cancel.
    log_alpha = math.log1p(alpha - 1)
    return math.expm1((gamma + 1) * log_alpha) / (alpha - 1)


def walltime_improvement(alpha: float, gamma: float, c: float) -> float:
    """Return the expected factor by which decoding gets faster: expected tokens / (gamma * c + 1).

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.
        c: Cost coefficient, the time of one run of the drafter over that of one of the target, at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Theorem 3.8, section 3.3. It assumes that the target verifies gamma + 1 tokens in the time of one.
    """
    _check("c", c, math.inf)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def _check(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most or math.isinf(value):
        allowed = f"in [0, {most:g}]" if math.isfinite(most) else "a finite number, at least 0"
        raise ValueError(f"{name} must be {allowed}; given {value!r}")
