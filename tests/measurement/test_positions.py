"""Whether the positions of a draft are alike."""

from __future__ import annotations

import pytest

from specdec_core.measurement.measurement_file import Acceptance
from specdec_core.measurement.position_test import compare_positions


def acceptance(rates, errors=None, **more):
    said = {"temperature": 1, "lenience": 1, "tokens": 100, "low": 0, "high": 1, **more}
    return Acceptance(alpha=rates[0], by_position=rates, by_position_error=errors or (), **said)


def test_positions_that_differ_by_noise_are_alike():
    found = compare_positions(acceptance((0.70, 0.72, 0.65), (0.01, 0.02, 0.03)))
    assert found.identical
    assert found.position == 3
    assert found.difference == pytest.approx(-0.05)


def test_positions_that_differ_by_more_are_not():
    found = compare_positions(acceptance((0.70, 0.72, 0.55), (0.01, 0.02, 0.03)))
    assert not found.identical
    assert found.position == 3
    assert found.tokens == pytest.approx(1 + 0.7 + 0.7 * 0.72 + 0.7 * 0.72 * 0.55)
    assert found.tokens_if_identical == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3)


def test_positions_that_were_hardly_judged_are_not_compared():
    rates, errors = (0.70, 0.72, 0.0), (0.01, 0.02, 0.0)
    assert compare_positions(acceptance(rates, errors, tokens=99)).position == 2
    assert compare_positions(acceptance(rates, errors, tokens=100)).position == 3
    # Nor those at which a token was hardly ever proposed.
    assert compare_positions(acceptance(rates, errors, tokens=100, proposed=(1.0, 0.5, 1.0))) is None


def test_one_position_is_not_compared():
    assert compare_positions(acceptance((0.7,), (0.01,))) is None
