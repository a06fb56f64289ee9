"""Notes on what to change about a run."""

import pytest

from specdec_core.study.report.diagnosis import diagnose, diagnosis_table
from tests.study.summaries import BASE, baseline, run

FINE = {"speedup": 1.5, "speedup_expected_here": 1.5, "speedup_by_gamma": (1.0, 1.2, 1.5, 1.5), "gamma_best": 2}


def told(temperature=0, **changed):
    return diagnose(run("a", temperature, **{**FINE, **changed}))


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({}, []),
        ({"speedup_by_gamma": (1.0, 1.25, 1.8, 1.5)}, ["gamma 2", "1.80×"]),
        ({"speedup_by_gamma": (1.0, 0.9, 0.8), "gamma_best": 0}, ["no gamma"]),
        ({"speedup_by_gamma": (1.0, 1.2, 1.5), "gamma_best": 2}, ["above 2"]),
        ({"gamma_best": None}, ["30"]),
        ({"speedup_expected_here": None}, ["30"]),
        ({"levels_mean": 2.0}, []),
        ({"drafted": 0}, ["nothing"]),
        ({"alpha": 0.08, "c": 0.12, "speedup": 0.8, "speedup_expected_here": 0.8}, ["0.08", "0.12", "3.9"]),
        ({"speedup": 1.2}, ["1.50×"]),
        ({"tokens": 200, "forced": 50}, ["25%"]),
    ],
)
def test_a_note_has_its_numbers(changed, facts):
    note = told(**changed)
    assert all(fact in note for fact in facts)
    assert bool(note) == bool(facts)


def test_sampled_drafts_of_a_greedy_target_are_named():
    config = dict(run("a").config) | {"run": {"name": "a", "draft_sampling": {"temperature": 1.0}}}
    assert "draft_sampling" in told(config=config)
    assert told(config=config | {"sampling": {"temperature": 1}}) == ""


def test_the_table_has_the_shares_of_the_time():
    assert diagnose(baseline()) is None
    table = diagnosis_table([baseline(), run("a")])
    (row,) = table.rows
    assert row.cells == ("a", "3.0", "1.5", "50%", "10%", "20%", "5%", "15%", BASE["diagnosis"])
    assert diagnosis_table([baseline()]) is None
