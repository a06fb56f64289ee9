"""A short, seeded run of every attack; `python -m tests.robustness` is the long one."""

from __future__ import annotations

import pytest

from tests.robustness.__main__ import ATTACKS
from tests.robustness.attack import attempt

CASES = 12
SEED = 2026


@pytest.mark.parametrize(
    "attack",
    [pytest.param(one, marks=pytest.mark.slow if one.cost > 10 else ()) for one in ATTACKS],
    ids=lambda attack: attack.name,
)
def test_nothing_gives_way(attack):
    results = [attempt(attack, SEED, number) for number in range(max(2, CASES // attack.cost))]
    broken = [f"{one.number}: {one.did}: {one.broken}" for one in results if one.broken]
    assert not broken, "\n".join(broken)
