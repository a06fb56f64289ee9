"""All that section 3 says of a drafter, in one place: what `specdec theory speed` prints.

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
    least_improvement,
    memory_reduction,
    operations_increase,
    optimal_gamma,
    oracle_improvement,
    oracle_tokens,
    walltime_improvement,
)

_ALWAYS_SHOWN = 8


@dataclass(frozen=True)
class AtGamma:
    """What is expected with one gamma.

    Attributes:
        gamma: Tokens drafted in a step.
        tokens: Expected tokens of a step, equation (1).
        improvement: Factor of wall time, Theorem 3.8.
        operations: Factor of increase in arithmetic operations, Theorem 3.11.
        memory: Factor by which reads of the target's weights and cache shrink, section 3.4.
        tokens_by_position: Expected tokens with acceptance by position; None where no seconds are given.
        improvement_at_cost: Factor of wall time with acceptance by position and the seconds that steps take; None
            where none are given.
    """

    gamma: int
    tokens: float
    improvement: float
    operations: float
    memory: float
    tokens_by_position: float | None = None
    improvement_at_cost: float | None = None


@dataclass(frozen=True)
class Outlook:
    """What is expected of a drafter.

    Attributes:
        alpha: Expected acceptance rate.
        c: Cost coefficient (Definition 3.7).
        c_hat: Ratio of arithmetic operations (Definition 3.10).
        improves: Whether some gamma pays, alpha > c (Corollary 3.9).
        least_improvement: What the best gamma improves at least (Corollary 3.9).
        optimal: At the gamma that is optimal by Theorem 3.8 (section 3.5).
        best: At the gamma that is best with the seconds that steps take; `optimal` where none are given.
        most: The largest gamma that was looked at.
        oracle_tokens: Expected tokens of a step with an oracle for gamma (section 3.5).
        oracle_improvement: Factor of wall time with an oracle for gamma.
        gammas: At 0, 1, ... and around what is optimal, best and asked for.
    """

    alpha: float
    c: float
    c_hat: float
    improves: bool
    least_improvement: float
    optimal: AtGamma
    best: AtGamma
    most: int
    oracle_tokens: float
    oracle_improvement: float
    gammas: tuple[AtGamma, ...]


def outlook(
    alpha: float,
    c: float,
    *,
    c_hat: float = 0.0,
    gamma: int | None = None,
    most: int = 1000,
    rates: Sequence[float] | None = None,
    seconds: Sequence[float] | None = None,
) -> Outlook:
    """Return what is expected of a drafter.

    Args:
        alpha: Expected acceptance rate, in [0, 1].
        c: Cost coefficient, at least 0.
        c_hat: Ratio of arithmetic operations, at least 0.
        gamma: A gamma that is asked for.
        most: The largest gamma to look at.
        rates: Acceptance by position; alpha everywhere when left out. Has a meaning with `seconds` only.
        seconds: What a step takes whose draft has 0, 1, ... K tokens. K limits every gamma.

    Returns:
        The outlook.

    Raises:
        ValueError: When an argument is out of range.
    """
    check_gamma(most, name="most")
    if seconds is not None:
        most = min(most, len(seconds) - 1)
    if gamma is not None:
        check_gamma(gamma, most, "the largest that is looked at")
    by_position = (alpha,) if rates is None else rates

    def at(k: int) -> AtGamma:
        return AtGamma(
            gamma=k,
            tokens=expected_tokens(alpha, k),
            improvement=walltime_improvement(alpha, k, c),
            operations=operations_increase(alpha, k, c_hat),
            memory=memory_reduction(alpha, k),
            tokens_by_position=expected_tokens_by_position(by_position, k) if seconds is not None else None,
            improvement_at_cost=improvement_at_cost(by_position, k, seconds) if seconds is not None else None,
        )

    optimal = optimal_gamma(alpha, c, most)
    best = optimal if seconds is None else best_gamma(by_position, seconds[: most + 1])
    near = {k for centre in (optimal, best, gamma or 0) for k in (centre - 1, centre, centre + 1)}
    shown = sorted(k for k in near.union(range(_ALWAYS_SHOWN + 1)) if 0 <= k <= most)
    return Outlook(
        alpha=alpha,
        c=c,
        c_hat=c_hat,
        improves=improves(alpha, c),
        least_improvement=least_improvement(alpha, c),
        optimal=at(optimal),
        best=at(best),
        most=most,
        oracle_tokens=oracle_tokens(alpha),
        oracle_improvement=oracle_improvement(alpha, c),
        gammas=tuple(map(at, shown)),
    )
