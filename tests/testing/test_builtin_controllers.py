"""Every built-in controller passes the conformance kit, with settings for each way it works."""

from __future__ import annotations

import pytest

from specdec_core import default_registry
from specdec_core.testing import checks_for, named
from tests.catalogue import GAMMAS
from tests.conformance import failures, outcomes

NOT_INDEPENDENT = {
    "running-average-timed": {"rows-independent"},
    "cost-aware": {"rows-independent", "batches-independent"},
    "cost-aware-given": {"rows-independent", "batches-independent"},
}
"""Optional checks that fail for controllers with one gamma for all rows, or that learn across batches."""
LENIENCES = {
    "constant": ("constant", {"lenience": 0.5}),
    "constant-lossless": ("constant", {"lenience": 1.0}),
    "greedy": ("greedy", {"lenience": 0.3}),
    "greedy-lossless": ("greedy", {"lenience": 1.0}),
    "schedule": ("schedule", {"points": ((0, 1.0), (4, 0.3))}),
    "schedule-steps": ("schedule", {"points": ((2, 0.2), (9, 1.0)), "interpolation": "step"}),
    "schedule-lossless": ("schedule", {"points": ((0, 1.0),)}),
    "budgeted": ("budgeted", {"max_deviation": 2.0, "min_lenience": 0.2}),
    "budgeted-lossless": ("budgeted", {"max_deviation": 0.0}),
}


BOUND = "probability-bound"
"""By default, tests/plugins/test_lenience_exactly.py compares samples with the bound and the distribution."""

BLIND = {"fixed", "optimal", "tree-best-first"}
"""Controllers that look at neither drafts nor outcomes: `tests/decoding` samples with such gammas and trees."""

ALIKE = {
    "fixed-none",
    "running-average-timed",
    "confidence-learnt",
    "cost-aware-given",
    "constant-lossless",
    "greedy-lossless",
    "schedule-steps",
    "schedule-lossless",
}
"""Controllers of a plugin that another of its settings stands for by default."""


def each(table):
    return [pytest.param(who, marks=[pytest.mark.slow] if who in ALIKE else []) for who in table]


def run_kit(kind, name, settings, device, require=(), without=()):
    # One process can tell for all plugins of a distribution whether listing them imports torch.
    without = {"spec-imports-no-torch", BOUND, *without}
    names = [check.name for check in checks_for(kind) if check.name not in without]
    results = outcomes(named(kind, name, settings, device=device), *names, require=require)
    assert not [one for one in results if one.outcome == "failed"]
    return {one.name: one.outcome for one in results}


@pytest.mark.parametrize("who", each(GAMMAS))
def test_a_gamma_controller_conforms(who, device):
    results = run_kit("gamma", *GAMMAS[who], device, without={"lossless"} if who in BLIND else ())
    failed = {name for name, outcome in results.items() if outcome == "xfailed"}
    assert failed <= NOT_INDEPENDENT.get(who, set())


@pytest.mark.parametrize("who", each(LENIENCES))
def test_a_lenience_controller_conforms(who, device):
    results = run_kit("lenience", *LENIENCES[who], device, require=("batches-independent",))
    declared = results["lossless-as-declared"]
    # `greedy` is lossless where the target samples, whatever its l.
    assert declared == ("passed" if who.endswith("lossless") or who == "greedy" else "skipped")


@pytest.mark.slow
@pytest.mark.parametrize("who", LENIENCES)
def test_no_token_is_likelier_than_a_lenience_controller_allows(who, device):
    assert not failures(named("lenience", *LENIENCES[who], device=device), BOUND)


@pytest.mark.parametrize(("kind", "name"), [("drafter", "random"), ("gamma", "fixed")])
def test_listing_imports_no_torch(kind, name):
    assert not failures(named(kind, name), "spec-imports-no-torch")


@pytest.mark.parametrize(("kind", "table"), [("gamma", GAMMAS), ("lenience", LENIENCES)])
def test_every_builtin_controller_is_checked(kind, table):
    assert {spec.name for spec in default_registry().specs(kind)} == {
        name for who, (name, _) in table.items() if who not in ALIKE
    }
