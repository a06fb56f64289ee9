"""What is printed of a measurement."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specdec_core.measurement.file import Acceptance, DrafterMeasurement, StepSeconds
from specdec_core.measurement.table import drafter_report

ONE = Acceptance(temperature=1, lenience=1, tokens=100, alpha=0.5, low=0.4, high=0.6, by_position=(0.5,))
SECONDS = StepSeconds(draft=(0, 0), verify=(1, 2), step=(1, 2))


@pytest.mark.parametrize(("timed", "said"), [((0,), "c is not known"), ((0, 1), "c = 0.000"), ((), "c = 0.000")])
def test_a_cost_that_was_not_measured_is_not_called_zero(timed, said):
    measured = DrafterMeasurement(name="rare", settings={}, acceptance=(ONE,), seconds=SECONDS, c=0, timed=timed)
    text = io.StringIO()
    Console(file=text, width=120).print(drafter_report(measured, 1, 100))
    assert f"rare: {said}" in text.getvalue()
