"""Time limits: what is stopped, what is told, and what is left as it was."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time

import pytest

from specdec_core import DeterministicDrafter, PluginConfig
from specdec_core import _time_limit as limiting
from specdec_core._time_limit import TimeLimitExceeded, time_limit
from specdec_core.testing import DrafterSubject, subject_of
from specdec_core.testing.check_runner import findings_of
from tests.conformance import outcomes
from tests.testing.defects import healthy

SHORT = 0.05


def endless():
    while True:
        with contextlib.suppress(Exception):  # as plugins do
            sum(range(1000))


def test_a_loop_is_stopped_though_it_catches_exceptions():
    with pytest.raises(TimeLimitExceeded) as stopped, time_limit(SHORT, "a loop"):
        endless()
    assert "endless" in [frame.name for frame in stopped.traceback]


def test_it_is_not_stopped_a_second_time_while_the_first_is_on_its_way_out():
    with time_limit(1e-3, "a loop"):
        with pytest.raises(TimeLimitExceeded):
            endless()
        left, again = signal.getitimer(signal.ITIMER_REAL)
    assert again == limiting._TICK
    assert left > 1e-2


def test_a_loop_that_catches_everything_once_is_stopped(monkeypatch):
    monkeypatch.setattr(limiting, "_TICK", SHORT)
    caught = []

    def stubborn():
        try:
            endless()
        except BaseException as error:
            caught.append(error)
            endless()

    with pytest.raises(TimeLimitExceeded), time_limit(SHORT, "a loop"):
        stubborn()
    assert len(caught) == 1


def test_a_list_that_grows_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(limiting, "_TICK", SHORT)
    monkeypatch.setattr(limiting, "_MEMORY", 1 << 20)
    memory = iter([0, *[5 << 30] * 1000])
    monkeypatch.setattr(limiting, "_peak_memory", lambda: next(memory))
    with pytest.raises(TimeLimitExceeded, match="and 5 GiB more memory"), time_limit(60, "a list"):
        endless()


def test_time_in_which_other_processes_compute_does_not_count(monkeypatch):
    """To this process, a machine that is busy with others looks as a sleep does."""
    monkeypatch.setattr(limiting, "_PATIENCE", 1e6)
    with time_limit(1.5 * SHORT, "a check"):
        time.sleep(3 * SHORT)


@pytest.mark.parametrize("hang", [lambda: time.sleep(60), threading.Event().wait])
def test_what_hangs_is_stopped_by_the_clock(hang, monkeypatch):
    monkeypatch.setattr(limiting, "_TICK", SHORT)
    with pytest.raises(TimeLimitExceeded, match=r"s, in .* s of which it computed"), time_limit(SHORT, "a lock"):
        hang()


def test_a_hang_is_named_before_a_timer_that_runs_already_ends(monkeypatch):
    monkeypatch.setattr(limiting, "_TICK", SHORT)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    outer = signal.setitimer(signal.ITIMER_REAL, 20 * SHORT)
    try:
        with pytest.raises(TimeLimitExceeded), time_limit(5 * SHORT, "a lock"):
            threading.Event().wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, before)


def test_threads_that_compute_at_once_count_no_more_than_the_clock(monkeypatch):
    clock, computing = iter([0.0, 20.0, 61.0]), iter([0.0, 80.0, 240.0])
    monkeypatch.setattr(limiting, "monotonic", lambda: next(clock))
    monkeypatch.setattr(limiting, "process_time", lambda: next(computing))
    spent = limiting._Spent(60, 0)
    assert not spent.over()
    assert spent.over()


@pytest.mark.parametrize("seconds", [None, 0])
def test_no_limit(seconds):
    with time_limit(seconds, "anything"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] in (0, pytest.approx(300, abs=299))


def test_a_timer_that_runs_already_is_started_again_with_what_is_left():
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append("outer"))
    outer = signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        with time_limit(50, "a check"):
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        signal.raise_signal(signal.SIGALRM)
        assert fired == ["outer"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, before)


def test_a_timer_that_ends_earlier_stays():
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    outer = signal.setitimer(signal.ITIMER_REAL, 30)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        with time_limit(50, "a check"):
            assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, before)


def test_outside_of_the_main_thread_it_is_told_what_is_waited_for(monkeypatch):
    told = threading.Event()
    lines = []

    class Errors:
        def write(self, text):
            lines.append(text)
            told.set()

        def flush(self):
            pass

    def work():
        with time_limit(SHORT, "the check 'x'"):
            told.wait()

    monkeypatch.setattr(limiting, "_TICK", SHORT)
    monkeypatch.setattr(sys, "stderr", Errors())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert re.search(r"the check 'x' has run for \S+ s, .* cannot be interrupted. It is at:", lines[0])
    assert "told.wait()" in lines[0]


class Endless(DeterministicDrafter):
    def draft(self, tokens, budget):
        endless()


class OneListForAllRows(DeterministicDrafter):
    """Appends to the list over which it goes, and which all rows share."""

    def __init__(self, config, target):
        super().__init__(config, target)
        self.drafted = []

    def draft(self, tokens, budget):
        self.drafted.append(tokens[-1])
        for token in self.drafted:
            self.drafted.append(token)
        return self.drafted


class LongOne(OneListForAllRows):
    """Returns the list that all rows share, which grows with every call."""

    def draft(self, tokens, budget):
        self.drafted.extend([tokens[-1]] * budget)
        return self.drafted


class EndlessInTheBeginning(Endless):
    def __init__(self, config, target):
        super().__init__(config, target)
        endless()


def run(kind, *names, **terms):
    return outcomes(DrafterSubject(lambda target: kind(PluginConfig(), target)), *names, **terms)


def stopped(kind, *names):
    return run(kind, *names, timeout=10 * SHORT)


@pytest.mark.parametrize("kind", [Endless, OneListForAllRows, EndlessInTheBeginning])
def test_a_check_that_does_not_end_fails_where_it_was(kind):
    one, other = stopped(kind, "zero-budget", "budget-respected")
    assert one.outcome == other.outcome == "failed"
    assert re.search("no end after .* s of computing", one.message)
    assert f'File "{__file__}"' in one.message
    assert "--timeout SECONDS" in one.message
    assert "the same cause as zero-budget" in other.message


def test_what_was_asked_of_it_is_told():
    (one,) = stopped(Endless, "zero-budget")
    assert "requested [4] tokens after [[2, 3, 5, 2, 3]]" in one.message


def test_a_list_that_all_rows_share_and_that_grows_is_too_long():
    results = run(LongOne, "zero-budget", "many-steps", "lossless")
    assert [one.outcome for one in results] == ["failed"] * 3
    assert "no end" not in str(results)
    assert re.search(r"\d+ tokens were proposed for row 0; its budget was", results[0].message)


def test_after_three_checks_that_do_not_end_the_others_are_skipped():
    names = ("zero-budget", "budget-respected", "ids-in-range", "many-steps", "lossless")
    results = stopped(Endless, *names)
    assert [one.outcome for one in results] == ["failed"] * 3 + ["skipped"] * 2
    assert "3 checks in a row did not end; `-k lossless` runs it" in results[-1].message


def test_a_check_that_ends_gives_the_next_ones_their_time_back():
    subject = DrafterSubject(lambda target: Endless(PluginConfig(), target))
    outcomes(subject, "zero-budget", timeout=10 * SHORT)
    assert findings_of(subject).timeouts == 1
    assert [one.outcome for one in outcomes(subject, "hidden-states-declared")] == ["passed"]
    assert findings_of(subject).timeouts == 0


def test_a_check_that_does_not_apply_gives_nothing_back():
    subject = DrafterSubject(lambda target: Endless(PluginConfig(), target))
    outcomes(subject, "zero-budget", timeout=10 * SHORT)
    assert [one.outcome for one in outcomes(subject, "reset-forgets")] == ["skipped"]
    assert findings_of(subject).timeouts == 1


def test_failures_that_are_expected_skip_no_others():
    names = ("zero-budget", "budget-respected", "ids-in-range", "many-steps")
    subject = DrafterSubject(lambda target: Endless(PluginConfig(), target))
    results = outcomes(subject, *names, timeout=SHORT, expected_failures=dict.fromkeys(names, "it is stuck"))
    assert [one.outcome for one in results] == ["xfailed"] * 4


def test_a_controller_that_does_not_end():
    class Waiting(healthy.Following):
        def open(self, batch):
            endless()

    (result,) = outcomes(subject_of("gamma", Waiting), "deterministic", timeout=SHORT)
    assert "called open()" in result.message
    assert "no end after" in result.message
