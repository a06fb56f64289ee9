"""Theorem 3.8 with measured costs: acceptance by position, and verification that is not free.

Section 3.3 assumes that the target verifies gamma + 1 positions in the time of one, T(k) = T(0), and that every
draft token is accepted with the same probability. Here a step whose draft has k tokens takes `seconds[k]`, and the
token at position i is accepted with probability `rates[i - 1]` if those before it were. With constant rates and
seconds of `1 + k c` this is Theorem 3.8.

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
        rates: Probability that the token at each position of a draft is accepted if those before it were, in [0,
            1]. The last one holds for all later positions.
        gamma: Tokens drafted per step, at least 0.

    Returns:
        The expected number of tokens, including the recovered or bonus token. With one rate it is equation (1).

    Raises:
        ValueError: If an argument is out of range, or there is no rate.

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
        gamma: Tokens drafted per step, at most K.
        seconds: Time of a step whose draft has k tokens, k = 0, 1, ... K, in any unit. `seconds[0]` is an
            autoregressive step.

    Returns:
        The factor; 1 for gamma = 0.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Theorem 3.8, section 3.3, with measured T(k).
    """
    check_each("seconds", seconds, above=True)
    check_gamma(gamma, len(seconds) - 1, "the longest draft with a time")
    return expected_tokens_by_position(rates, gamma) * seconds[0] / seconds[int(gamma)]


def best_gamma(rates: Sequence[float], seconds: Sequence[float]) -> int:
    """Return the gamma in 0 ... K with the most tokens per second, the smallest if several are equal.

    Every gamma is tried, as measured times may jump and have several peaks. 0 means that speculative decoding does
    not pay.

    Args:
        rates: Acceptance by position, as in `expected_tokens_by_position`.
        seconds: Time of a step whose draft has k tokens, k = 0, 1, ... K, in any unit.

    Returns:
        The number of draft tokens.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Section 3.5.
    """
    check_each("rates", rates, 1.0)
    check_each("seconds", seconds, above=True)
    last = len(rates) - 1
    tokens = reached = 1.0
    best, best_rate = 0, 1 / seconds[0]
    for k in range(1, len(seconds)):
        reached *= rates[min(k - 1, last)]
        tokens += reached
        rate = tokens / seconds[k]
        if rate > best_rate:
            best, best_rate = k, rate
    return best


def step_seconds(
    c: float, gamma: int, verify: Sequence[float] | Mapping[int, float] | None = None
) -> tuple[float, ...]:
    """Return the time of steps with drafts of 0, 1, ... gamma tokens: k c + T(k), in units of T(0).

    Args:
        c: Cost coefficient, the time of one run of the drafter over that of one of the target (Definition 3.7).
        gamma: The longest draft.
        verify: T(k), the time in which the target verifies k draft tokens, in units of T(0). None is the
            assumption of section 3.3, T(k) = 1. A sequence gives it for k = 0, 1, ...; a mapping for the k that
            were measured, including 0. Others are interpolated linearly; beyond the last k, the last slope
            continues if it is positive.

    Returns:
        gamma + 1 numbers; the first is T(0).

    Raises:
        ValueError: When an argument is out of range, or T(0) is missing.

    References:
        Proof of Theorem 3.8, section 3.3, with T(k) instead of T.
    """
    check("c", c)
    check_gamma(gamma)
    if verify is None:
        return tuple(k * c + 1.0 for k in range(int(gamma) + 1))
    known = dict(verify) if isinstance(verify, Mapping) else dict(enumerate(verify))
    for k, value in known.items():
        check_gamma(k, name="each k in verify")
        check(f"verify[{k}]", value, above=True)
    if 0 not in known:
        raise ValueError("verify must include T(0), the time of a target call without a draft")
    return tuple(k * c + _between(known, k) for k in range(int(gamma) + 1))


def _between(known: Mapping[int, float], k: int) -> float:
    """Interpolate T(k)."""
    if k in known:
        return float(known[k])
    places = sorted(known)
    later = [place for place in places if place > k]
    if later:
        before = places[len(places) - len(later) - 1]
        share = (k - before) / (later[0] - before)
        return known[before] + share * (known[later[0]] - known[before])
    last = places[-1]
    if len(places) == 1:
        return float(known[last])
    # A negative slope is noise: verifying more never takes less time, and extrapolation must not go below 0.
    slope = max(0.0, (known[last] - known[places[-2]]) / (last - places[-2]))
    return known[last] + (k - last) * slope
