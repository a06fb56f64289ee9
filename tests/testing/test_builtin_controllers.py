"""Every controller that ships passes the conformance kit, in each of its ways of working."""

from __future__ import annotations

import json

import pytest

from specdec_core import default_registry
from specdec_core.testing import checks, named, run_checks
from tests.catalogue import GAMMAS

TOGETHER = {
    "running-average-timed": {"rows-apart"},
    "cost-aware": {"rows-apart", "batches-apart"},
    "cost-aware-given": {"rows-apart", "batches-apart"},
}
"""Those that choose for all rows together, or learn from batch to batch, as their pages say: optional checks."""
LENIENCES = {
    "constant": ("constant", {"lenience": 0.5}),
    "constant-lossless": ("constant", {"lenience": 1.0}),
    "argmax": ("argmax", {"lenience": 0.3}),
    "argmax-lossless": ("argmax", {"lenience": 1.0}),
    "schedule": ("schedule", {"points": ((0, 1.0), (4, 0.3))}),
    "schedule-steps": ("schedule", {"points": ((2, 0.2), (9, 1.0)), "between": "step"}),
    "schedule-lossless": ("schedule", {"points": ((0, 1.0),)}),
    "budgeted": ("budgeted", {"deviation": 2.0, "least": 0.2}),
    "budgeted-lossless": ("budgeted", {"deviation": 0.0}),
}


@pytest.mark.parametrize("who", GAMMAS)
def test_a_gamma_controller_conforms(who, device):
    name, settings = GAMMAS[who]
    report = run_checks(named("gamma", name, settings, device=device))
    assert report.passed, str(report)
    assert {one.check.name for one in report.results if one.outcome == "optional"} <= TOGETHER.get(who, set())


@pytest.mark.parametrize("who", LENIENCES)
def test_a_lenience_controller_conforms(who, device):
    name, settings = LENIENCES[who]
    report = run_checks(named("lenience", name, settings, device=device), require=("batches-apart",))
    assert report.passed, str(report)
    promised = report.outcome("lossless-as-promised")
    assert promised == ("passed" if who.endswith("lossless") else "skipped"), json.dumps(settings)


@pytest.mark.parametrize(("kind", "table"), [("gamma", GAMMAS), ("lenience", LENIENCES)])
def test_every_controller_that_ships_is_judged(kind, table):
    ships = {spec.name for spec in default_registry().specs(kind)}
    assert ships == {name for name, _ in table.values()}
    assert len(checks(kind)) >= 10
