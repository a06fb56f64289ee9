"""A step waits for the device once, and copies what Python knows without waiting. Counts never grow."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from specdec_core.models import fetched_later
from tests.device.counting import cases
from tests.simulated_gpu import counted, late_copies

KNOWN = json.loads(Path(__file__).with_name("launches.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.usefixtures("simulated")

MORE_FETCHES = {"hierarchical": 4, "translated, slem": 2, "transformer, 3 beams": 4}
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
    assert not grown, (
        f"known and counted now; if it must be, run `python -m tests.device.counting`:\n{grown}\n{where}"
    )


def test_what_is_fetched_later_waits_only_where_it_has_not_arrived(device):
    x = torch.tensor([[1, 2], [3, 4]], device=device)
    for arrived in (True, False):
        with late_copies(), counted() as counts:
            values = fetched_later(x)
            x.cpu() if arrived else None
            assert values() == [[1, 2], [3, 4]]
        assert (counts.waits, counts.of("synchronize")) == (1, not arrived)


def test_all_cases_are_known():
    assert {(setting, name) for setting, known in KNOWN.items() for name in known} == {
        (setting, case.name) for setting, case in cases()
    }
