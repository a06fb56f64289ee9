"""A test of whether the positions of a draft are alike, as equation (1) assumes. Importing this imports no torch.

References:
    Leviathan et al. 2023, section 3.1 (arXiv 2211.17192).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdec_core.measurement.measurement_file import Acceptance
from specdec_core.theory.speed import expected_tokens, expected_tokens_by_position


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
    for position, (rate, there) in enumerate(zip(acceptance.by_position, proposed, strict=False)):
        if reached * there < _MIN_VERIFIED:
            return position
        reached *= there * rate
    return len(acceptance.by_position)
