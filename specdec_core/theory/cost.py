"""What to expect where a step's time is measured: acceptance by position, and verification that is not flat.

Section 3.3 assumes two things that a machine need not grant: that the target verifies gamma + 1 positions in the
time of one, T(k) = T(0), and that every draft token is accepted with the same probability. Here a step whose draft
has k tokens takes `seconds[k]`, whatever that is, and the token at position i is accepted with probability
`rates[i - 1]` if those before it were. With constant rates and seconds of `1 + k c` this is Theorem 3.8.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    sections 3.1, 3.3 and 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specdec_core.theory.ranges import check, check_each, check_gamma


def expected_tokens_by_position(rates: Sequence[float], gamma: int) -> float:
    """Return the expected number of tokens of one step: 1 + sum_{i=1..gamma} prod_{j<=i} rates[j].

    Args:
        rates: Probability that the token at each position of a draft is accepted, given that those before it
            were, in [0, 1]. The last one holds for the positions behind it.
        gamma: Tokens drafted in a step, at least 0.

    Returns:
        The expected number of tokens, the recovered or bonus token included. With one rate it is equation (1).

    Raises:
        ValueError: When an argument is out of range, or there is no rate.

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


def improvement_at_cost(rates: Sequence[float], gamma: int, seconds: Sequence[float]) -> float:
    """Return the expected factor by which decoding gets faster: expected tokens * seconds[0] / seconds[gamma].

    Args:
        rates: Acceptance by position, as in `expected_tokens_by_position`.
        gamma: Tokens drafted in a step, at most K.
        seconds: What a step takes whose draft has k tokens, k = 0, 1, ... K, in any unit. `seconds[0]` is a step
            of plain decoding.

    Returns:
        The factor; 1 for gamma = 0.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Theorem 3.8, section 3.3, with T(k) as it is.
    """
    check_each("seconds", seconds, above=True)
    check_gamma(gamma, len(seconds) - 1, "the longest draft whose time is given")
    return expected_tokens_by_position(rates, gamma) * seconds[0] / seconds[int(gamma)]


def best_gamma(rates: Sequence[float], seconds: Sequence[float]) -> int:
    """Return the gamma in 0 ... K that gives most tokens a second, the smallest of equals.

    What a step takes may be anything, so every gamma is tried: with times that jump, the gain need not have one
    peak only. 0 says that speculation does not pay.

    Args:
        rates: Acceptance by position, as in `expected_tokens_by_position`.
        seconds: What a step takes whose draft has k tokens, k = 0, 1, ... K, in any unit.

    Returns:
        The whole number of draft tokens.

    Raises:
        ValueError: When an argument is out of range.

    References:
        Section 3.5.
    """
    check_each("rates", rates, 1.0)
    check_each("seconds", seconds, above=True)
    last = len(rates) - 1
    tokens = reached = 1.0
    best, most = 0, 1 / seconds[0]
    for k in range(1, len(seconds)):
        reached *= rates[min(k - 1, last)]
        tokens += reached
        rate = tokens / seconds[k]
        if rate > most:
            best, most = k, rate
    return best


def step_seconds(
    c: float, gamma: int, verify: Sequence[float] | Mapping[int, float] | None = None
) -> tuple[float, ...]:
    """Return what steps with drafts of 0, 1, ... gamma tokens take: k c + T(k), in units of a plain target call.

    Args:
        c: Cost coefficient, the time of one run of the drafter over that of one of the target (Definition 3.7).
        gamma: The longest draft.
        verify: T(k), the time in which the target verifies k draft tokens, in target calls, so that T(0) = 1. None
            is the assumption of section 3.3, T(k) = 1. A sequence says it for k = 0, 1, ...; a mapping for the k
            that were measured, 0 among them. Between two of them it is interpolated linearly, and behind the
            last it goes on with the last slope, if that rises.

    Returns:
        gamma + 1 numbers; the first is T(0).

    Raises:
        ValueError: When an argument is out of range, or T(0) is missing.

    References:
        Proof of Theorem 3.8, section 3.3, with T(k) in the place of T.
    """
    check("c", c)
    check_gamma(gamma)
    if verify is None:
        return tuple(k * c + 1.0 for k in range(int(gamma) + 1))
    known = dict(verify) if isinstance(verify, Mapping) else dict(enumerate(verify))
    for k, value in known.items():
        check_gamma(k, name="the number of tokens that verify is about")
        check(f"verify[{k}]", value, above=True)
    if 0 not in known:
        raise ValueError("verify must say T(0), the time of a plain target call; it does not")
    return tuple(k * c + _between(known, k) for k in range(int(gamma) + 1))


def _between(known: Mapping[int, float], k: int) -> float:
    """Return T(k) from the T that are known."""
    if k in known:
        return float(known[k])
    places = sorted(known)
    behind = [place for place in places if place > k]
    if behind:
        before = places[len(places) - len(behind) - 1]
        share = (k - before) / (behind[0] - before)
        return known[before] + share * (known[behind[0]] - known[before])
    last = places[-1]
    if len(places) == 1:
        return float(known[last])
    # A slope that falls is noise of a measurement: more to verify never takes less, and must not end below 0.
    slope = max(0.0, (known[last] - known[places[-2]]) / (last - places[-2]))
    return known[last] + (k - last) * slope
