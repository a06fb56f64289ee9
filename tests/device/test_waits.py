"""A step waits for the device once, and copies what Python knows without waiting. Counts never grow."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from specdec_core.costs.gpu.device import host_costs
from tests.device.counting import cases

KNOWN = host_costs()
pytestmark = pytest.mark.usefixtures("simulated")

MORE_FETCHES = {
    "hierarchical": 4,
    "translated": 2,
    "translated, slem": 3,
    "transformer, 3 beams": 4,
    "ngram, tree": 5,
}
"""Those that compute in Python between forward passes; all others fetch once."""


@pytest.mark.parametrize(
    ("setting", "case"), [pytest.param(*one, id=f"{one[1].name}-{one[0]}") for one in cases()]
)
def test_a_step_costs_the_host_no_more_than_it_did(setting, case):
    cost, counts = case.cost()
    where = counts.lines("fetch", "upload", "upload_pageable")
    assert (cost.blocking, cost.pageable) == (0, 0), where
    assert cost.fetches <= MORE_FETCHES.get(case.name, 1), where
    known = KNOWN[setting][case.name]
    grown = {name: (known[name], count) for name, count in asdict(cost).items() if count > known[name]}
    assert not grown, f"known and counted now; if it must be, run benchmarks/launches.py:\n{grown}\n{where}"


def test_all_cases_are_known():
    assert {(setting, name) for setting, known in KNOWN.items() for name in known} == {
        (setting, case.name) for setting, case in cases()
    }
