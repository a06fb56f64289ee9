"""What theory expects of a drafter that was measured. Importing this imports no torch.

Two answers: that of the paper, from alpha and c alone, and that of what was measured, acceptance by position and
the seconds of steps with drafts of each length. Where they part, one of the paper's assumptions does not hold
here.

References:
    Leviathan et al. 2023, section 3 (arXiv 2211.17192).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdec_core.measurement.file import Acceptance, DrafterMeasurement
from specdec_core.theory import (
    best_gamma,
    expected_tokens,
    expected_tokens_by_position,
    improvement_at_cost,
    optimal_gamma,
    walltime_improvement,
)


@dataclass(frozen=True)
class Expectation:
    """What to expect at one temperature and lenience.

    Attributes:
        ideal_gamma: The best gamma by section 3.5, of those up to the longest draft that was measured.
        ideal: Its factor, Theorem 3.8.
        gamma: The best gamma with acceptance by position and the measured seconds; 0 where speculation does not
            pay.
        factor: Its factor.
    """

    ideal_gamma: int
    ideal: float
    gamma: int
    factor: float


def expect(measured: DrafterMeasurement, acceptance: Acceptance, batch_size: int = 1) -> Expectation:
    """Return what to expect of a drafter at the settings at which its acceptance was measured.

    Args:
        measured: The drafter.
        acceptance: One of its acceptances.
        batch_size: How many prompts were decoded together when its steps were timed.
    """
    rates = rates_by_position(acceptance, len(measured.seconds.step) - 1)
    seconds = seconds_by_gamma(measured.seconds.step, acceptance, batch_size)
    # Theorem 3.8 knows no empty drafts: to it they are refused.
    alpha = rates[0]
    ideal_gamma = optimal_gamma(alpha, measured.c, most=len(rates))
    gamma = best_gamma(rates, seconds)
    return Expectation(
        ideal_gamma=ideal_gamma,
        ideal=walltime_improvement(alpha, ideal_gamma, measured.c),
        gamma=gamma,
        factor=improvement_at_cost(rates, gamma, seconds),
    )


def rates_by_position(acceptance: Acceptance, gamma: int) -> tuple[float, ...]:
    """Return the probability that each position up to gamma adds a token, given that those before it did.

    A token that is not proposed adds none: the acceptance of tokens times the probability that there is one.
    """
    known = len(acceptance.by_position)
    proposed = acceptance.proposed or (1.0,) * gamma
    return tuple(
        acceptance.by_position[k] * proposed[k] if k < known and k < len(proposed) else 0.0 for k in range(gamma)
    )


def seconds_by_gamma(step: tuple[float, ...], acceptance: Acceptance, batch_size: int = 1) -> tuple[float, ...]:
    """Return what a step takes on average when 0, 1, ... gamma tokens are asked for.

    A drafter that proposes fewer makes a shorter step. In a batch the longest draft of the rows counts, which are
    taken as independent of one another.

    Args:
        step: Seconds of a step whose longest draft has 0, 1, ... gamma tokens.
        acceptance: Says how often a draft reaches each length.
        batch_size: How many rows there are.
    """
    gamma = len(step) - 1
    reach = [1 - (1 - share) ** batch_size for share in (acceptance.drafted or (1.0,) * gamma)]
    seconds = [step[0]]
    for k in range(1, gamma + 1):
        # One more token asked for lengthens those steps that have it.
        seconds.append(seconds[-1] + reach[k - 1] * (step[k] - step[k - 1]))
    return tuple(seconds)


@dataclass(frozen=True)
class Identical:
    """Whether acceptance is the same at every position, as equation (1) takes it to be.

    Attributes:
        alike: Whether no position differs from the first by more than the noise of both.
        position: The position that differs most, from 1.
        difference: Its acceptance less that of the first.
        noise: Standard error of the difference.
        positions: How many positions were compared.
        tokens: Tokens a step at a draft of that many, by position.
        tokens_if_alike: The same by equation (1).
    """

    alike: bool
    position: int
    difference: float
    noise: float
    positions: int
    tokens: float
    tokens_if_alike: float


_OFTEN = 50.0
_MANY_ERRORS = 3.0
"""Standard errors that no difference of some ten reaches by chance, but for one time in 40."""


def compare_positions(acceptance: Acceptance) -> Identical | None:
    """Compare acceptance at each position of a draft with that at the first; None where there is only one.

    Positions that were judged fewer than 50 times, of all the tokens, are left out: their errors cannot be
    trusted.

    The errors of two positions are added as if they were independent. They share their texts, so the difference is
    surer than that: what is called different is so.
    """
    errors = acceptance.by_position_error
    kept = _often_judged(acceptance)
    if kept < 2 or len(errors) != len(acceptance.by_position):
        return None
    rates, errors = acceptance.by_position[:kept], errors[:kept]
    noise = [math.hypot(errors[0], error) for error in errors]
    differences = [rate - rates[0] for rate in rates]
    surprise = [abs(d) / max(n, 1e-9) for d, n in zip(differences, noise, strict=True)]
    most = max(range(1, len(rates)), key=lambda k: surprise[k])
    return Identical(
        alike=surprise[most] < _MANY_ERRORS,
        position=most + 1,
        difference=differences[most],
        noise=noise[most],
        positions=len(rates),
        tokens=expected_tokens_by_position(rates, len(rates)),
        tokens_if_alike=expected_tokens(acceptance.alpha, len(rates)),
    )


def _often_judged(acceptance: Acceptance) -> int:
    """Return how many positions from the first were judged often enough for their errors to mean something."""
    proposed = acceptance.proposed or (1.0,) * len(acceptance.by_position)
    reached = float(acceptance.tokens)
    for place, (rate, there) in enumerate(zip(acceptance.by_position, proposed, strict=False)):
        if reached * there < _OFTEN:
            return place
        reached *= there * rate
    return len(acceptance.by_position)
