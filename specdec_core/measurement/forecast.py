"""The forecast for a measured drafter, and whether its positions are alike. Importing this imports no torch.

The forecast has two answers: that of the paper, from alpha and c alone, and that of the measurement, from
acceptance by position and the times of steps with drafts of each length. Where they differ, an assumption of the
paper does not hold.

References:
    Leviathan et al. 2023, section 3 (arXiv 2211.17192).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdec_core.measurement.file import Acceptance, DrafterMeasurement
from specdec_core.theory import expected_tokens, expected_tokens_by_position
from specdec_core.theory.forecast import Forecast, forecast
from specdec_core.theory.workload import requested_seconds


def forecast_drafter(
    measured: DrafterMeasurement,
    acceptance: Acceptance,
    batch_size: int = 1,
    *,
    c_hat: float = 0.0,
    gamma: int | None = None,
    max_gamma: int = 1000,
) -> Forecast:
    """Return the forecast for a drafter at the settings at which its acceptance was measured.

    Args:
        measured: The drafter.
        acceptance: One of its acceptances.
        batch_size: Number of prompts that were decoded together while its steps were timed.
        c_hat: Ratio of arithmetic operations.
        gamma: A gamma to include.
        max_gamma: The largest gamma to consider, up to the longest draft that was measured.
    """
    steps = measured.seconds.step
    # Section 3 knows no empty drafts: a token that is not proposed counts as rejected.
    rates = rates_by_position(acceptance, len(steps) - 1) or (acceptance.alpha,)
    seconds = seconds_by_gamma(steps, acceptance, batch_size)
    return forecast(
        rates[0], measured.c, c_hat=c_hat, gamma=gamma, max_gamma=max_gamma, rates=rates, seconds=seconds
    )


def rates_by_position(acceptance: Acceptance, gamma: int) -> tuple[float, ...]:
    """Return the probability that each position up to gamma adds a token if those before it did.

    This is the acceptance rate times the probability that a token is proposed.
    """
    known = len(acceptance.by_position)
    proposed = acceptance.proposed or (1.0,) * gamma
    return tuple(
        acceptance.by_position[k] * proposed[k] if k < known and k < len(proposed) else 0.0 for k in range(gamma)
    )


def seconds_by_gamma(step: tuple[float, ...], acceptance: Acceptance, batch_size: int = 1) -> tuple[float, ...]:
    """Return the mean seconds of a step in which 0, 1, ... gamma tokens are requested.

    A drafter that proposes fewer shortens the step. In a batch the longest draft counts; sequences are assumed to
    be independent.

    Args:
        step: Seconds of a step whose longest draft has 0, 1, ... gamma tokens.
        acceptance: Gives the share of drafts that reach each length.
        batch_size: Number of sequences.
    """
    gamma = len(step) - 1
    reach = [1 - (1 - share) ** batch_size for share in (acceptance.drafted or (1.0,) * gamma)]
    return requested_seconds(step, reach[:gamma])


@dataclass(frozen=True)
class PositionTest:
    """Whether the acceptance rate is the same at every position, as equation (1) assumes.

    Attributes:
        identical: Whether no position differs from the first by more than noise.
        position: The position that differs most, from 1.
        difference: Its acceptance rate minus that of the first.
        noise: Standard error of the difference.
        positions: Number of positions that were compared.
        tokens: Tokens per step with drafts of that length, by position.
        tokens_if_identical: The same by equation (1).
    """

    identical: bool
    position: int
    difference: float
    noise: float
    positions: int
    tokens: float
    tokens_if_identical: float


_MIN_VERIFIED = 50.0
"""Positions that were verified less often are not compared."""
_MAX_ERRORS = 3.0
"""Standard errors of a significant difference; among ten positions one exceeds it by chance one time in 40."""


def compare_positions(acceptance: Acceptance) -> PositionTest | None:
    """Compare the acceptance rate at each position of a draft with the first; None if there is only one.

    Positions that were verified fewer than 50 times are left out, as their errors are unreliable. The errors of
    two positions are added as if they were independent. They share texts, so this is conservative.
    """
    errors = acceptance.by_position_error
    count = _verified_positions(acceptance)
    if count < 2 or len(errors) != len(acceptance.by_position):
        return None
    rates, errors = acceptance.by_position[:count], errors[:count]
    noise = [math.hypot(errors[0], error) for error in errors]
    differences = [rate - rates[0] for rate in rates]
    surprise = [abs(d) / max(n, 1e-9) for d, n in zip(differences, noise, strict=True)]
    largest = max(range(1, len(rates)), key=lambda k: surprise[k])
    return PositionTest(
        identical=surprise[largest] < _MAX_ERRORS,
        position=largest + 1,
        difference=differences[largest],
        noise=noise[largest],
        positions=len(rates),
        tokens=expected_tokens_by_position(rates, len(rates)),
        tokens_if_identical=expected_tokens(acceptance.alpha, len(rates)),
    )


def _verified_positions(acceptance: Acceptance) -> int:
    """Return how many positions from the first were verified often enough for reliable errors."""
    proposed = acceptance.proposed or (1.0,) * len(acceptance.by_position)
    reached = float(acceptance.tokens)
    for place, (rate, there) in enumerate(zip(acceptance.by_position, proposed, strict=False)):
        if reached * there < _MIN_VERIFIED:
            return place
        reached *= there * rate
    return len(acceptance.by_position)
