"""Every controller that ships passes the conformance kit, in each of its ways of working."""

from __future__ import annotations

import json

import pytest

from specdec_core import default_registry
from specdec_core.testing import checks, named, run_checks

# Settings with which a controller moves within a few steps.
GAMMAS = {
    "fixed": ("fixed", {"gamma": 3}),
    "fixed-none": ("fixed", {"gamma": 0}),
    "optimal": ("optimal", {"alpha": 0.6, "c": 0.1}),
    "running-average": ("running-average", {"initial": 1, "most": 3, "rate": 20, "memory": 0.5}),
    "running-average-timed": ("running-average", {"initial": 2, "most": 3, "rate": 20, "c": None}),
    "additive": ("additive", {"initial": 1, "most": 4}),
    "confidence": ("confidence", {"threshold": 0.4, "most": 3}),
    "confidence-learnt": ("confidence", {"threshold": 0.4, "most": 3, "learn": True, "memory": 0.5}),
    "cost-aware": ("cost-aware", {"most": 3, "memory": 10, "probing": 0.2}),
    "cost-aware-given": ("cost-aware", {"most": 3, "memory": 10, "probing": 0.2, "seconds": (1, 1.2, 1.3, 1.6)}),
}
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
def test_a_gamma_controller_conforms(who):
    name, settings = GAMMAS[who]
    report = run_checks(named("gamma", name, settings))
    assert report.passed, str(report)
    assert {one.check.name for one in report.results if one.outcome == "optional"} <= TOGETHER.get(who, set())


@pytest.mark.parametrize("who", LENIENCES)
def test_a_lenience_controller_conforms(who):
    name, settings = LENIENCES[who]
    report = run_checks(named("lenience", name, settings), require=("batches-apart",))
    assert report.passed, str(report)
    promised = report.outcome("lossless-as-promised")
    assert promised == ("passed" if who.endswith("lossless") else "skipped"), json.dumps(settings)


@pytest.mark.parametrize(("kind", "table"), [("gamma", GAMMAS), ("lenience", LENIENCES)])
def test_every_controller_that_ships_is_judged(kind, table):
    ships = {spec.name for spec in default_registry().specs(kind)}
    assert ships == {name for name, _ in table.values()}
    assert len(checks(kind)) >= 10
