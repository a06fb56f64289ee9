"""The speed-up to expect, and the best gamma: Theorem 3.8, also with measured costs.

Theorem 3.8 (`specdec_core.theory.walltime_improvement`) assumes that the target verifies gamma + 1 positions in
the time of one, T(k) = T(0), that every draft token is accepted with the same probability, and that nothing but
the two models takes time. Here a step whose draft has k tokens takes `seconds[k]`, such as `StepCosts.step`, and
the token at position i is accepted with probability `rates[i - 1]` if those before it were. With constant rates
and seconds of `1 + k c` this is Theorem 3.8. Where the two differ, an assumption of the paper does not hold.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.theory.speed import (
    check_each,
    check_gamma,
    expected_tokens,
    expected_tokens_by_position,
    improves,
    operations_increase,
    optimal_gamma,
    walltime_improvement,
)

_ALWAYS_SHOWN = 8


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


@dataclass(frozen=True)
class GammaForecast:
    """The forecast for one gamma.

    Attributes:
        gamma: Tokens drafted per step.
        tokens: Expected tokens per step, equation (1). Reads of the target's weights and cache shrink by this
            factor, as they are read once per step (section 3.4).
        improvement: Factor of wall time, Theorem 3.8.
        operations: Factor by which arithmetic operations grow, Theorem 3.11.
        improvement_at_cost: Factor of wall time with measured steps; None without `seconds`.
    """

    gamma: int
    tokens: float
    improvement: float
    operations: float
    improvement_at_cost: float | None = None


@dataclass(frozen=True)
class Forecast:
    """The forecast for a drafter.

    Attributes:
        alpha: Expected acceptance rate.
        c: Cost coefficient (Definition 3.7).
        c_hat: Ratio of arithmetic operations (Definition 3.10).
        improves: Whether some gamma pays, alpha > c (Corollary 3.9).
        optimal: The forecast for the optimal gamma by Theorem 3.8 (section 3.5).
        best: The forecast for the best gamma with measured steps; `optimal` without `seconds`.
        max_gamma: The largest gamma that was considered.
        gammas: The forecast for 0, 1, ..., and around the optimal, the best and the requested gamma.
    """

    alpha: float
    c: float
    c_hat: float
    improves: bool
    optimal: GammaForecast
    best: GammaForecast
    max_gamma: int
    gammas: tuple[GammaForecast, ...]


def forecast(
    alpha: float,
    c: float,
    *,
    c_hat: float = 0.0,
    gamma: int | None = None,
    max_gamma: int = 1000,
    seconds: Sequence[float] | None = None,
) -> Forecast:
    """Return the forecast for a drafter with each gamma; `specdec theory speed` prints it.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        c_hat: Ratio of arithmetic operations, at least 0.
        gamma: A gamma to include.
        max_gamma: The largest gamma to consider.
        seconds: Time of a step in which 0, 1, ... K tokens are drafted. K limits every gamma.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_gamma(max_gamma, name="max_gamma")
    if seconds is not None:
        max_gamma = min(max_gamma, len(seconds) - 1)
    if gamma is not None:
        check_gamma(gamma, max_gamma, "the largest gamma considered")

    def at(k: int) -> GammaForecast:
        return GammaForecast(
            gamma=k,
            tokens=expected_tokens(alpha, k),
            improvement=walltime_improvement(alpha, k, c),
            operations=operations_increase(alpha, k, c_hat),
            improvement_at_cost=improvement_at_cost((alpha,), k, seconds) if seconds is not None else None,
        )

    optimal = optimal_gamma(alpha, c, max_gamma)
    best = optimal if seconds is None else best_gamma((alpha,), seconds[: max_gamma + 1])
    near = {k for center in (optimal, best, gamma or 0) for k in (center - 1, center, center + 1)}
    shown = sorted(k for k in near.union(range(_ALWAYS_SHOWN + 1)) if 0 <= k <= max_gamma)
    return Forecast(
        alpha=alpha,
        c=c,
        c_hat=c_hat,
        improves=improves(alpha, c),
        optimal=at(optimal),
        best=at(best),
        max_gamma=max_gamma,
        gammas=tuple(map(at, shown)),
    )


@dataclass(frozen=True)
class Workload:
    """The decoding that a benchmark repeats with every gamma.

    Attributes:
        tokens: New tokens.
        sequences: Sequences that they belong to.
        sequences_per_step: Mean number of sequences that are decoded in one step; at most the batch size, as the
            sequences of a batch end at different times.
        prompt_steps: Steps that read a prompt; their time is part of `fixed_seconds`.
        fixed_seconds: Time that no drafter changes: prompts and set-up.
    """

    tokens: int
    sequences: int = 0
    sequences_per_step: float = 1.0
    prompt_steps: int = 0
    fixed_seconds: float = 0.0

    def seconds(self, rates: Sequence[float], gamma: int, step_seconds: float) -> float:
        """Return the expected wall time with a fixed gamma.

        Args:
            rates: Acceptance by position, as in `expected_tokens_by_position`.
            gamma: Tokens requested per step.
            step_seconds: Mean seconds of a step in which gamma tokens are requested.
        """
        generated = self.tokens + self.sequences * overshoot(rates, gamma)
        steps = generated / expected_tokens_by_position(rates, gamma) / self.sequences_per_step
        return self.fixed_seconds + max(0.0, steps - self.prompt_steps) * step_seconds


def overshoot(rates: Sequence[float], gamma: int) -> float:
    """Return the mean number of tokens by which the last step of a sequence exceeds the end of the sequence.

    With X tokens per step this is the mean excess of a renewal process, E[X (X - 1)] / (2 E[X]), where
    E[X (X - 1)] / 2 = sum_i i P(X > i).

    Args:
        rates: Acceptance by position, as in `expected_tokens_by_position`.
        gamma: Tokens drafted per step.
    """
    reached, excess = 1.0, 0.0
    for position in range(1, gamma + 1):
        reached *= rates[min(position, len(rates)) - 1]
        excess += position * reached
    return excess / expected_tokens_by_position(rates, gamma)


def requested_seconds(step: Sequence[float], reach: Sequence[float]) -> tuple[float, ...]:
    """Return the mean seconds of a step in which 0, 1, ... K tokens are requested, where drafts may be shorter.

    Args:
        step: Seconds of a step whose longest draft has k tokens, k = 0, 1, ... at least K.
        reach: K numbers, the share of drafts that have at least 1, 2, ... K tokens when as many are requested.
    """
    seconds = [step[0]]
    for k, share in enumerate(reach, start=1):
        # Requesting one more token lengthens only the steps whose draft has it.
        seconds.append(seconds[-1] + share * (step[k] - step[k - 1]))
    return tuple(seconds)


def reach_by_length(drafted: Sequence[int], requested: Sequence[int], gamma: int) -> tuple[float, ...]:
    """Return the share of steps that drafted at least k tokens among those that requested k, k = 1 ... gamma.

    Beyond the longest draft that was ever requested, drafts end as often as at the last position.

    Args:
        drafted: Number of steps whose longest draft had 0, 1, ... tokens.
        requested: Number of steps that requested 0, 1, ... tokens.
        gamma: How many positions to return.
    """
    found: list[float] = []
    share, continues = 1.0, 1.0
    for k in range(1, gamma + 1):
        if (trials := sum(requested[k:])) > 0:
            now = min(share, sum(drafted[k:]) / trials)
            continues = now / share if share else 0.0
            share = now
        else:
            share *= continues
        found.append(share)
    return tuple(found)
