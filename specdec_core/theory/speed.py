"""Gains and costs of speculative decoding from alpha, gamma and c (section 3).

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192.
"""

import math
from collections.abc import Sequence


def check(name: str, value: float, max_value: float = math.inf, *, above: bool = False) -> None:
    """Check that a number is in [0, max_value]; NaN and infinity are errors.

    Args:
        name: Name of the argument.
        value: The number.
        max_value: The largest allowed value; infinity allows every finite number.
        above: Whether 0 is out of range too.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if (0 < value <= max_value and value != math.inf) or (value == 0 and not above):
        return
    if max_value == math.inf:
        allowed = f"a finite number, {'above' if above else 'at least'} 0"
    else:
        allowed = f"in {'(' if above else '['}0, {max_value:g}]"
    raise ValueError(f"{name} must be {allowed}; given {value!r}")


def check_each(name: str, values: Sequence[float], max_value: float = math.inf, *, above: bool = False) -> None:
    """Check that a sequence is not empty, and each of its numbers as in `check`.

    Args:
        name: Name of the argument.
        values: The numbers.
        max_value: The largest allowed value.
        above: Whether 0 is out of range too.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if not len(values):
        raise ValueError(f"{name} must hold at least one number; given none")
    for index, value in enumerate(values):
        # Avoids a call for valid numbers: controllers run this in every step.
        if not 0 < value <= max_value or value == math.inf:
            check(f"{name}[{index}]", value, max_value, above=above)


def check_gamma(gamma: int, max_gamma: int | None = None, because: str = "", *, name: str = "gamma") -> None:
    """Check that a gamma is a whole number from 0 to `max_gamma`.

    Args:
        gamma: The number.
        max_gamma: The largest allowed gamma, if there is one.
        because: What `max_gamma` is, for the message.
        name: Name of the argument.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if not 0 <= gamma < math.inf or int(gamma) != gamma:
        raise ValueError(f"{name} must be a whole number, at least 0; given {gamma!r}")
    if max_gamma is not None and gamma > max_gamma:
        raise ValueError(f"{name} must be at most {max_gamma}{f', {because}' if because else ''}; given {gamma!r}")


def expected_tokens(alpha: float, gamma: float) -> float:
    """Return the expected number of tokens of one step: (1 - alpha^(gamma+1)) / (1 - alpha).

    Deviation: the paper's gamma is an integer; a mean over steps of different lengths is accepted too.

    Args:
        alpha: Expected acceptance rate E(beta), in [0, 1]; at 1 the limit gamma + 1 is returned.
        gamma: Tokens drafted in a step, at least 0; with 0 a step yields one token.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Equation (1), section 3.1.
    """
    check("alpha", alpha, 1.0)
    check("gamma", gamma)
    if alpha == 1:
        return gamma + 1.0
    if alpha == 0:
        return 1.0
    # expm1 avoids cancellation in 1 - alpha^(gamma+1) for alpha close to 1.
    return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1)


def expected_tokens_by_position(rates: Sequence[float], gamma: int) -> float:
    """Return the expected number of tokens of one step: 1 + sum_{i=1..gamma} prod_{j<=i} rates[j].

    Args:
        rates: Probability that the token at each position of a draft is accepted if those before it were, in [0,
            1]. The last one holds for all later positions.
        gamma: Tokens drafted per step, at least 0.

    Returns:
        The expected number of tokens, including the recovered or bonus token. With one rate it is equation (1).

    Raises:
        ValueError: If an argument is out of range, or the rates are empty.

    References:
        Equation (1), section 3.1, without its assumption that the betas are identically distributed.
    """
    check_each("rates", rates, 1.0)
    check_gamma(gamma)
    tokens = reached = 1.0
    for position in range(int(gamma)):
        reached *= rates[min(position, len(rates) - 1)]
        tokens += reached
    return tokens


def walltime_improvement(alpha: float, gamma: float, c: float) -> float:
    """Return the expected factor by which decoding gets faster: expected tokens / (gamma * c + 1).

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.
        c: Cost coefficient, the time of one run of the drafter over that of one of the target, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Theorem 3.8, section 3.3. It assumes that the target verifies gamma + 1 tokens in the time of one;
        `specdec_core.costs.forecast.improvement_at_cost` does not.
    """
    check("c", c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def improves(alpha: float, c: float) -> bool:
    """Return whether some gamma makes decoding faster: alpha > c.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Corollary 3.9, section 3.3: gamma = 1 gains (1 + alpha) / (1 + c). The paper proves "if"; "only if" also
        holds, since a draft token adds at most alpha tokens and costs c.
    """
    check("alpha", alpha, 1.0)
    check("c", c)
    return alpha > c


def operations_increase(alpha: float, gamma: float, c_hat: float) -> float:
    """Return the factor by which arithmetic operations grow: (gamma * c_hat + gamma + 1) / expected tokens.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        gamma: Tokens drafted in a step, at least 0.
        c_hat: Operations of the drafter for a token over those of the target (Definition 3.10), at least 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Theorem 3.11, section 3.4.
    """
    check("c_hat", c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, c: float, max_gamma: int = 1000) -> int:
    """Return the gamma in 0 ... max_gamma with the greatest wall-time improvement, the smallest of equals.

    The numerator of Theorem 3.8 is concave in gamma and the denominator affine, so the quotient has a single peak,
    and the search ends at the first gamma that does not improve. Going from gamma to gamma + 1 improves exactly if

        alpha^(gamma+1) * (gamma * c + 1) > c * (1 + alpha + ... + alpha^gamma),

    which is decided reliably in floating point, unlike a comparison of the quotients.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        max_gamma: The largest gamma to return; the only limit for a drafter that costs nothing (c = 0, alpha above
            0) or is always accepted (alpha = 1, c below 1).

    Returns:
        The optimal gamma; 0 if c >= alpha, as speculative decoding does not pay then (Corollary 3.9).

    Raises:
        ValueError: If an argument is out of range.

    References:
        Section 3.5.
    """
    check_gamma(max_gamma, name="max_gamma")
    if not improves(alpha, c):
        return 0
    if c == 0 or alpha == 1:
        return max_gamma
    tokens, power, gamma = 1.0, alpha, 0
    while gamma < max_gamma and power * (gamma * c + 1) > c * tokens:
        gamma += 1
        tokens += power
        power *= alpha
    return gamma
