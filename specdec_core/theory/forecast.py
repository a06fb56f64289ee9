"""The forecast of section 3 for a drafter, with each gamma; `specdec theory speed` prints it.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.theory.cost import best_gamma, expected_tokens_by_position, improvement_at_cost
from specdec_core.theory.ranges import check_gamma
from specdec_core.theory.speed import (
    expected_tokens,
    improves,
    memory_reduction,
    min_improvement,
    operations_increase,
    optimal_gamma,
    oracle_improvement,
    oracle_tokens,
    walltime_improvement,
)

_ALWAYS_SHOWN = 8


@dataclass(frozen=True)
class GammaForecast:
    """The forecast for one gamma.

    Attributes:
        gamma: Tokens drafted per step.
        tokens: Expected tokens per step, equation (1).
        improvement: Factor of wall time, Theorem 3.8.
        operations: Factor by which arithmetic operations grow, Theorem 3.11.
        memory: Factor by which reads of the target's weights and cache shrink, section 3.4.
        tokens_by_position: Expected tokens with acceptance by position; None without `seconds`.
        improvement_at_cost: Factor of wall time with acceptance by position and measured steps; None without
            `seconds`.
    """

    gamma: int
    tokens: float
    improvement: float
    operations: float
    memory: float
    tokens_by_position: float | None = None
    improvement_at_cost: float | None = None


@dataclass(frozen=True)
class Forecast:
    """The forecast for a drafter.

    Attributes:
        alpha: Expected acceptance rate.
        c: Cost coefficient (Definition 3.7).
        c_hat: Ratio of arithmetic operations (Definition 3.10).
        improves: Whether some gamma pays, alpha > c (Corollary 3.9).
        min_improvement: Lower bound of the improvement with the best gamma (Corollary 3.9).
        optimal: The forecast for the optimal gamma by Theorem 3.8 (section 3.5).
        best: The forecast for the best gamma with measured steps; `optimal` without `seconds`.
        max_gamma: The largest gamma that was considered.
        oracle_tokens: Expected tokens per step with an oracle for gamma (section 3.5).
        oracle_improvement: Factor of wall time with an oracle for gamma.
        gammas: The forecast for 0, 1, ..., and around the optimal, the best and the requested gamma.
    """

    alpha: float
    c: float
    c_hat: float
    improves: bool
    min_improvement: float
    optimal: GammaForecast
    best: GammaForecast
    max_gamma: int
    oracle_tokens: float
    oracle_improvement: float
    gammas: tuple[GammaForecast, ...]


def forecast(
    alpha: float,
    c: float,
    *,
    c_hat: float = 0.0,
    gamma: int | None = None,
    max_gamma: int = 1000,
    rates: Sequence[float] | None = None,
    seconds: Sequence[float] | None = None,
) -> Forecast:
    """Return the forecast for a drafter.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        c_hat: Ratio of arithmetic operations, at least 0.
        gamma: A gamma to include.
        max_gamma: The largest gamma to consider.
        rates: Acceptance by position, used with `seconds`; by default alpha everywhere.
        seconds: Time of a step in which 0, 1, ... K tokens are drafted. K limits every gamma.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_gamma(max_gamma, name="max_gamma")
    if seconds is not None:
        max_gamma = min(max_gamma, len(seconds) - 1)
    if gamma is not None:
        check_gamma(gamma, max_gamma, "the largest gamma considered")
    by_position = (alpha,) if rates is None else rates

    def at(k: int) -> GammaForecast:
        return GammaForecast(
            gamma=k,
            tokens=expected_tokens(alpha, k),
            improvement=walltime_improvement(alpha, k, c),
            operations=operations_increase(alpha, k, c_hat),
            memory=memory_reduction(alpha, k),
            tokens_by_position=expected_tokens_by_position(by_position, k) if seconds is not None else None,
            improvement_at_cost=improvement_at_cost(by_position, k, seconds) if seconds is not None else None,
        )

    optimal = optimal_gamma(alpha, c, max_gamma)
    best = optimal if seconds is None else best_gamma(by_position, seconds[: max_gamma + 1])
    near = {k for centre in (optimal, best, gamma or 0) for k in (centre - 1, centre, centre + 1)}
    shown = sorted(k for k in near.union(range(_ALWAYS_SHOWN + 1)) if 0 <= k <= max_gamma)
    return Forecast(
        alpha=alpha,
        c=c,
        c_hat=c_hat,
        improves=improves(alpha, c),
        min_improvement=min_improvement(alpha, c),
        optimal=at(optimal),
        best=at(best),
        max_gamma=max_gamma,
        oracle_tokens=oracle_tokens(alpha),
        oracle_improvement=oracle_improvement(alpha, c),
        gammas=tuple(map(at, shown)),
    )
