"""The printed table of a measurement."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specdec_core.costs import StepCosts
from specdec_core.measurement.measurement_file import Acceptance, DrafterMeasurement
from specdec_core.measurement.table import drafter_report

ONE = Acceptance(temperature=1, lenience=1, tokens=100, alpha=0.5, low=0.4, high=0.6, by_position=(0.5,))


def measured(name, c, timed):
    seconds = StepCosts(draft=(0, 0), verify=(1, 2), overhead=0, timed=timed)
    return DrafterMeasurement(name=name, settings={}, acceptance=(ONE,), seconds=seconds, c=c)


@pytest.mark.parametrize(("timed", "said"), [((0,), "c is unknown"), ((0, 1), "c = 0\n"), ((), "c = 0\n")])
def test_a_cost_that_was_not_measured_is_not_called_zero(timed, said):
    text = io.StringIO()
    Console(file=text, width=120).print(drafter_report(measured("rare", 0, timed), 1, 100))
    assert f"rare: {said}" in text.getvalue()
    rows = {
        line.split(",")[0].strip(): line.split()[2:] for line in text.getvalue().splitlines() if ", ms" in line
    }
    assert rows["drafting"] == (["0", "–"] if timed == (0,) else ["0", "0"])
    assert rows["step"] == ["1000.00", "–" if timed == (0,) else "2000.00"]
    assert ("–: too few drafts to time." in text.getvalue()) == (timed == (0,))


def test_what_matters_least_is_left_out_of_a_narrow_terminal():
    text = io.StringIO()
    Console(file=text, width=72).print(drafter_report(measured("a", 0.0002, (0, 1)), 1, 100), crop=False)
    assert "a: c <0.001" in text.getvalue()
    assert "0.400 to 0.600" in text.getvalue()
    left_out = "tokens, Theorem 3.8 best γ, Theorem 3.8 expected"
    assert f"Left out to fit 72 columns: {left_out}." in " ".join(text.getvalue().split())
    assert max(map(len, text.getvalue().splitlines())) <= 72
