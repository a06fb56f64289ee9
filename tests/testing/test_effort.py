"""Slow plugins: fewer texts and samples, and a report that says so."""

from __future__ import annotations

import pytest

from specdec_core import DeterministicDrafter, PluginConfig
from specdec_core.testing import DrafterSubject, subject_of
from specdec_core.testing.check_runner import findings_of
from specdec_core.testing.effort import Effort, visible_error
from specdec_core.testing.harness import session_driver
from tests.conformance import failures, outcomes
from tests.testing.defects import healthy

CALLS: list[int] = []


class Counting(DeterministicDrafter):
    def draft(self, tokens, budget):
        CALLS.append(budget)
        return [tokens[-1]] * budget


@pytest.fixture
def count(monkeypatch):
    """Return a function that runs checks with a drafter that seems to take some time, and counts its calls."""

    def run(seconds_for_rows, *names):
        monkeypatch.setattr(session_driver, "seconds_of_a_call", lambda *given: seconds_for_rows(given[2]))
        CALLS.clear()
        subject = DrafterSubject(lambda target: Counting(PluginConfig(), target))
        assert not failures(subject, *names)
        return len(CALLS), subject.effort.why, findings_of(subject).shortened

    return run


NAMES = ("all-accepted", "many-steps", "lossless")


def test_a_slow_drafter_is_called_less_and_the_notes_say_so(count):
    full, _, shortened = count(lambda rows: 1e-4, *NAMES)
    assert not shortened
    few, why, shortened = count(lambda rows: 0.05 * rows, *NAMES)
    assert few * 0.05 < 60
    assert few < full / 10
    assert {name for names in shortened.values() for name in names} == set(NAMES)
    assert why == "a call takes about 0 s and 0.05 s for each row"
    text = str(list(shortened))
    assert "2 of 4 steps" in text
    assert "at most 64 of 16,000 samples, which show errors that move 44% of the probability (not 3%)" in text


def test_a_drafter_that_takes_as_long_for_many_rows_keeps_its_samples(count):
    _, why, shortened = count(lambda rows: 0.05, "lossless", "many-steps")
    assert "4,000 of 16,000" in str(shortened)
    assert "rows of a batch" not in str(shortened)
    assert why == "a call takes about 0.05 s"


def test_a_very_slow_drafter_is_tried_on_one_target(count):
    few, _, shortened = count(lambda rows: 0.2 * rows, "zero-budget", "many-steps")
    assert few < 50
    assert all("1 of 2 targets" in note for note in shortened)


def test_what_cannot_be_timed_is_tried_in_full():
    class Broken(Counting):
        def open(self, session):
            raise RuntimeError("no session")

    subject = DrafterSubject(lambda target: Broken(PluginConfig(), target))
    assert subject.effort is Effort.FULL


@pytest.mark.parametrize(("kind", "make"), [("gamma", healthy.Following), ("lenience", healthy.Lenient)])
def test_controllers_are_timed_as_well(monkeypatch, kind, make):
    subject = subject_of(kind, make)
    assert not subject.effort.short
    slow = subject_of(kind, make)
    monkeypatch.setattr(type(slow), "_timed_effort", lambda self: Effort.of_controller(0.05))
    assert not failures(slow, "deterministic", "inputs-unchanged")
    assert findings_of(slow).shortened == {
        "12 of 60 steps of a batch": ["deterministic"],
        "8 of 40 steps of a batch": ["inputs-unchanged"],
    }


@pytest.mark.parametrize(("samples", "error"), [(16_000, "3%"), (4_000, "6%"), (64, "44%"), (4, "100%")])
def test_the_error_that_a_sample_shows(samples, error):
    assert visible_error(samples) == error


def test_calls_are_told_from_rows():
    effort = Effort.of_drafter(one_row=0.03, several=0.06, rows=4)
    assert (effort.call_seconds, effort.row_seconds) == (pytest.approx(0.02), pytest.approx(0.01))
    assert Effort.of_drafter(one_row=0.03, several=0.03, rows=1).row_seconds == 0


def test_under_pytest_what_was_shortened_is_printed(monkeypatch, capsys):
    subject = subject_of("gamma", healthy.Following)
    monkeypatch.setattr(type(subject), "_timed_effort", lambda self: Effort.of_controller(0.05))
    outcomes(subject, "deterministic")
    told = "shortened, since a call takes about 0.05 s: 12 of 60 steps of a batch\n"
    assert capsys.readouterr().out == told
