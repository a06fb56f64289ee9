"""The harness of generation tests tells what is expected from what is not; `.ci/run generation` runs all of it."""

import json

import pytest
import torch
import yaml

from specdec_core import generate_with
from tests.generation.__main__ import DATA, EXPECTED, judged, reason, run
from tests.generation.families import FAMILIES
from tests.generation.shapes import SHAPES, Case

expected = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("result", "wanted", "verdict"),
    [
        ("passed", None, "passed"),
        ("refused: x was given", None, "failed"),
        ("passed", "x was given", "failed"),
        ("refused: x was given", "x was given", "expected"),
        ("refused: y was given", "x was given", "failed"),
        ("skipped: ValueError", "x was given", "skipped"),
    ],
)
def test_an_unexpected_result_fails(result, wanted, verdict):
    assert judged(result, wanted) == verdict


def test_expectations_and_results_are_those_of_the_code():
    assert set(expected) <= set(SHAPES)
    assert {family for one in expected.values() for family in one} - {"*"} <= set(FAMILIES)
    assert [row["family"] for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"]] == list(FAMILIES)
    assert reason(expected, "assistant beside a drafter", "qwen3_next") != reason(
        expected, "assistant beside a drafter", "llama"
    )
    assert reason(expected, "greedy", "llama") is None


@pytest.mark.slow
def test_a_family_is_as_expected_and_other_tokens_are_noticed(tmp_path):
    case = Case("llama", str(tmp_path))
    row, problems = run(case, expected)
    assert not problems
    assert row["passed"] > 20

    def other(*given, **settings):
        ids = generate_with()(*given, **settings)
        return torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % 40], dim=1)

    case.drafted = other
    with pytest.raises(AssertionError, match="the ids are others"):
        SHAPES["greedy"](case)
