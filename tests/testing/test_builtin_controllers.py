"""Every built-in controller passes the conformance kit, with settings for each way it works."""

import pytest

from specdec_core import default_registry
from specdec_core.testing import DrafterKit, GammaKit, LenienceKit
from tests.catalogue import GAMMAS
from tests.conformance import failure_of, failures, kit_of, names_of

NOT_INDEPENDENT = {
    "running-average-timed": {"rows_independent"},
    "cost-aware": {"rows_independent", "batches_independent"},
    "cost-aware-given": {"rows_independent", "batches_independent"},
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

BOUND = "probability_bound"
"""By default, tests/plugins/test_lenience_exactly.py compares samples with the bound and the distribution."""
LISTING = "spec_imports_no_torch"
"""One process can tell for all plugins of a distribution whether listing them imports torch."""

BLIND = {"fixed", "optimal", "tree-best-first"}
"""Controllers that look at neither drafts nor outcomes: `tests/decoding` samples with such gammas and trees."""
ALIKE = {
    "fixed",
    "fixed-none",
    "running-average-timed",
    "confidence-learnt",
    "cost-aware-given",
    "constant-lossless",
    "greedy-lossless",
    "schedule-steps",
    "schedule-lossless",
    "budgeted-lossless",
    "running-average",
    "tree",
    "additive",
    "greedy",
    "schedule",
}
"""Controllers that the slow tests check; by default, another one stands for each."""


def each(table):
    return [pytest.param(who, marks=[pytest.mark.slow] if who in ALIKE else []) for who in table]


def kit(base, name, settings, device):
    return kit_of(base, plugin=name, settings=settings, device=device)


@pytest.mark.parametrize("who", each(GAMMAS))
def test_a_gamma_controller_conforms(who, device):
    names = set(names_of(GammaKit)) - {LISTING} - ({"lossless"} if who in BLIND else set())
    failed = failures(kit(GammaKit, *GAMMAS[who], device), *names)
    assert set(failed) <= NOT_INDEPENDENT.get(who, set()), failed


@pytest.mark.parametrize("who", each(LENIENCES))
def test_a_lenience_controller_conforms(who, device):
    made = kit(LenienceKit, *LENIENCES[who], device)
    assert not failures(made, *set(names_of(LenienceKit)) - {LISTING, BOUND})
    # `greedy` is lossless where the target samples, whatever its l.
    lossless = who.endswith("lossless") or who == "greedy"
    assert (failure_of(made, "lossless_as_declared") is None) is lossless


@pytest.mark.slow
@pytest.mark.parametrize("who", LENIENCES)
def test_no_token_is_likelier_than_a_lenience_controller_allows(who, device):
    assert failure_of(kit(LenienceKit, *LENIENCES[who], device), BOUND) is None


@pytest.mark.parametrize(("base", "name"), [(DrafterKit, "random"), (GammaKit, "fixed")])
def test_listing_imports_no_torch(base, name):
    assert failure_of(kit_of(base, plugin=name), LISTING) is None


@pytest.mark.parametrize(("kind", "table"), [("gamma", GAMMAS), ("lenience", LENIENCES)])
def test_every_builtin_controller_is_checked(kind, table):
    assert {spec.name for spec in default_registry().specs(kind)} == {name for name, _ in table.values()}
