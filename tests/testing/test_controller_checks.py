"""Errors that no controller can cause through the interface: the checks of decoding must see them, too."""

from __future__ import annotations

import pytest

from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing import CheckFailure, named, subject_of
from specdec_core.testing.checks import controller_decoding as decoding
from specdec_core.testing.harness.enumeration import continuations
from specdec_core.testing.harness.scenarios import Scenario, ScenarioRow, scenario_of
from specdec_core.testing.harness.tiny_target import tiny_target
from tests.testing.defects import healthy


def constant_lenience(value):
    return named("lenience", "constant", {"lenience": value})


def test_another_distribution_fails(monkeypatch):
    other = continuations(tiny_target().loaded, SamplingSettings(temperature=0.8), length=decoding.LENGTH)
    monkeypatch.setattr(decoding, "exact", lambda device: other)
    with pytest.raises(CheckFailure, match="chi-square"):
        decoding.lossless(subject_of("gamma", healthy.Following))


def test_other_tokens_fail_when_greedy():
    with pytest.raises(CheckFailure, match="the baseline's tokens"):
        decoding.greedy_equals_baseline(constant_lenience(0.01))


def test_a_token_below_the_bound_fails_when_greedy(monkeypatch):
    decoding.greedy_bound(constant_lenience(0.2))
    monkeypatch.setattr(decoding, "_at", lambda row, position: 0.9)
    with pytest.raises(CheckFailure, match=r"p\(x\) >= l max p"):
        decoding.greedy_bound(constant_lenience(0.2))


def test_a_token_above_the_bound_fails_when_sampled(monkeypatch):
    monkeypatch.setattr(decoding, "_at", lambda row, position: 1.0)
    with pytest.raises(CheckFailure, match=r"at most p\(\d\) / l"):
        decoding.probability_bound(constant_lenience(0.05))


def test_simulated_reports_are_possible_ones():
    rows = (ScenarioRow(1, room=9), ScenarioRow(2, room=60, end_rate=0.1), ScenarioRow(3, room=60))
    batch = subject_of("gamma", healthy.Confident).simulate(Scenario(rows)).run(80)
    assert batch.done
    for report in batch.reports:
        for asked, drafted, accepted, new in zip(
            report.asked, report.outcome.drafted, report.outcome.accepted, report.outcome.committed, strict=True
        ):
            assert asked >= drafted >= accepted
            assert len(new) <= accepted + 1
    for index, row in enumerate(rows):
        assert sum(len(report.outcome.committed[index]) for report in batch.reports) <= row.room


def test_a_simulated_row_does_not_depend_on_others():
    alone = subject_of("lenience", healthy.Lenient).simulate(scenario_of(5, room=90)).run(30)
    batched = subject_of("lenience", healthy.Lenient).simulate(scenario_of(5, 6, room=90)).run(30)
    assert [report.outcome.committed[0] for report in alone.reports] == [
        report.outcome.committed[0] for report in batched.reports
    ]
    assert {report.outcome.accepted[0] for report in alone.reports} > {0, 1}
