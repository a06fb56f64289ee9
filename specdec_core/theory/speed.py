"""What speculation gains and costs, from alpha, gamma and c (section 3 of the paper).

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192.
"""

from __future__ import annotations

import math

from specdec_core.theory.ranges import check, check_gamma


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
    check("alpha", alpha, 1.0)
    check("gamma", gamma)
    if alpha == 1:
        return gamma + 1.0
    if alpha == 0:
        return 1.0
    # expm1 keeps the quotient right where alpha is so near 1 that 1 - alpha^(gamma+1) cancels.
    return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1)


def walltime_improvement(alpha: float, gamma: float, c: float) -> float:
    """Return the expected factor by which decoding gets faster: expected tokens / (gamma * c + 1).

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.
        c: Cost coefficient, the time of one run of the drafter over that of one of the target, at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Theorem 3.8, section 3.3. It assumes that the target verifies gamma + 1 tokens in the time of one;
        `improvement_at_cost` does not.
    """
    check("c", c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def improves(alpha: float, c: float) -> bool:
    """Return whether some gamma makes decoding faster: alpha > c.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Corollary 3.9, section 3.3. It says "if"; "only if" holds as well, since a draft token adds at most alpha
        tokens and costs c.
    """
    check("alpha", alpha, 1.0)
    check("c", c)
    return alpha > c


def least_improvement(alpha: float, c: float) -> float:
    """Return what the best gamma improves at least: (1 + alpha) / (1 + c) where alpha > c, and 1 elsewhere.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.

    Returns:
        The factor at gamma = 1, or 1, which is that of gamma = 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Corollary 3.9, section 3.3.
    """
    return (1 + alpha) / (1 + c) if improves(alpha, c) else 1.0


def operations_increase(alpha: float, gamma: float, c_hat: float) -> float:
    """Return the factor by which arithmetic operations grow: (gamma * c_hat + gamma + 1) / expected tokens.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.
        c_hat: Operations of the drafter for a token over those of the target (Definition 3.10), at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Theorem 3.11, section 3.4.
    """
    check("c_hat", c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def memory_reduction(alpha: float, gamma: float) -> float:
    """Return the factor by which reads of the target's weights and of its keys and values shrink.

    They are read once a step, whatever number of tokens it yields; so the factor is that of equation (1). Reads of
    the drafter's weights are not in it.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Section 3.4, last paragraph.
    """
    return expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, c: float, most: int = 1000) -> int:
    """Return the gamma in 0 ... most with the greatest wall-time improvement, the smallest of equals.

    The numerator of Theorem 3.8 is concave in gamma and the denominator affine, so the quotient has one peak, and
    the first step that does not rise ends the search. From gamma to gamma + 1 it rises exactly where

        alpha^(gamma+1) * (gamma * c + 1) > c * (1 + alpha + ... + alpha^gamma),

    which, unlike the quotients themselves, floats can tell apart as long as alpha^(gamma+1) is a number.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        most: The largest gamma that may be returned. A drafter that costs nothing (c = 0, alpha above 0), or that
            is always right (alpha = 1, c below 1), has no other limit.

    Returns:
        The whole number; 0 where c >= alpha, when speculation does not pay (Corollary 3.9).

    Raises:
        ValueError: When an argument is out of range.

    References:
        Section 3.5.
    """
    check_gamma(most, name="most")
    if not improves(alpha, c):
        return 0
    if c == 0 or alpha == 1:
        return most
    tokens, power, gamma = 1.0, alpha, 0
    while gamma < most and power * (gamma * c + 1) > c * tokens:
        gamma += 1
        tokens += power
        power *= alpha
    return gamma


def oracle_tokens(alpha: float) -> float:
    """Return the expected tokens of a step whose gamma an oracle chooses: 1 / (1 - alpha).

    It is also what negligible-cost drafters come near with a large gamma (section 3.6).

    Args:
        alpha: Expected acceptance rate, in [0, 1]; at 1 the result is infinite.

    Raises:
        ValueError: When alpha is out of range.

    References:
        Section 3.5, its last paragraph.
    """
    check("alpha", alpha, 1.0)
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def oracle_improvement(alpha: float, c: float) -> float:
    """Return the factor by which an oracle for gamma makes decoding faster: 1 / (1 - alpha + c * alpha).

    An oracle drafts just the n tokens that will be accepted. n is geometric with mean alpha / (1 - alpha), so a
    step yields 1 / (1 - alpha) tokens in the time of 1 + c * alpha / (1 - alpha) target calls; the factor is the
    quotient. Where c > 1 even an accepted token costs more than one of plain decoding: the oracle drafts
    nothing, and the factor is 1.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.

    Returns:
        The factor; infinite where alpha = 1 and c = 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Section 3.5, its last paragraph; the paper states the bound without a formula.
    """
    check("alpha", alpha, 1.0)
    check("c", c)
    share = 1 - alpha + min(c, 1) * alpha
    return math.inf if share == 0 else 1 / share


def oracle_gain(alpha: float, c: float, most: int = 1000) -> float:
    """Return how much faster the oracle for gamma is than the best fixed gamma: a factor of at least 1.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        most: The largest fixed gamma to compare with.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Section 3.5: "up to ~60% higher than the improvement factor with a fixed gamma".
    """
    oracle = oracle_improvement(alpha, c)
    return oracle / walltime_improvement(alpha, optimal_gamma(alpha, c, most), c)
