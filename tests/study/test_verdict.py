"""The verdict on a task: what timings can tell, and what failed."""

from dataclasses import replace

import pytest

from specdec_core.study.report.tables import results_table
from specdec_core.study.report.verdict import exit_code, fastest, verdict
from specdec_core.study.run.finished_repeats import ReplayedOn
from tests.study.summaries import QUALITY, UNMEASURED, baseline, run, timed

DIFFERS = {**QUALITY, "exact": 0.5, "first_difference": (0, 2)}
FAILURE = {"plugin": "Echo", "step": 3, "message": "RuntimeError: it broke", "where": "echo.py:7", "times": 2}


def broken(name="broken", **changed):
    return run(name, **{**UNMEASURED, "quality": QUALITY, "failures": (FAILURE,), **changed})


def names(*runs):
    return [one.name for one in fastest([baseline(), *runs])]


def test_runs_are_told_apart_if_their_intervals_do_not_overlap():
    a, b, c = timed("a", 1.4, 1.5, 1.6), timed("b", 1.35, 1.45, 1.5), timed("c", 1.1, 1.2, 1.3)
    assert names(c, b, a) == ["a", "b"]
    assert names(timed("b", 1.35, 1.38, 1.39), c, a) == ["a"]
    answer = verdict([baseline(), a, b, c]).answer
    assert "a (1.50×" in answer
    assert "b (1.45×" in answer
    assert "c (" not in answer


def test_outliers_among_many_repeats_do_not_hide_a_difference():
    a, b = [1.5] * 11 + [0.8], [1.2] * 11 + [2.0]
    assert names(timed("a", *a), timed("b", *b)) == ["a"]
    assert names(timed("a", *a[-3:]), timed("b", *b[-3:])) == ["a", "b"]


@pytest.mark.parametrize("repeats", [1, 2])
def test_one_or_two_repeats_tell_nothing_apart(repeats):
    runs = [baseline(repeats=repeats), timed("a", *[1.5] * repeats), timed("b", *[0.5] * repeats)]
    found = verdict(runs)
    assert "fewer than 3 repeats" in found.answer
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("run_", "facts"),
    [
        (timed("a", 0.8, 0.9, 0.95), ["a (0.90×", "none is faster"]),
        (timed("a", 0.9, 1.05, 1.6), ["a (1.05×", "none is clearly faster"]),
        (run("a", **UNMEASURED, error="x"), ["no run was measured"]),
        (timed("a", 1.1, 1.2, 1.3, speedup_bound=1.05), ["no run can be ranked"]),
        (run("a", quality=DIFFERS), ["departs"]),
    ],
)
def test_no_run_is_praised_without_reason(run_, facts):
    answer = verdict([baseline(), run_]).answer
    assert all(fact in answer for fact in facts)


def test_the_fastest_lossless_run_is_named_beside_a_lossy_one():
    lenient = timed("l", 1.9, 2.0, 2.1, lenience=0.5, lossless=False)
    first, _, second = verdict([baseline(), lenient, run("a")]).answer.partition("lossless runs")
    assert "l (2.00×" in first
    assert "a (1.50×" in second


def test_runs_that_were_not_timed_are_ranked_by_tokens_per_pass():
    untimed = {**UNMEASURED, "replayed": ReplayedOn("r", 9, 9, 99, low=1.9, high=2.1)}
    alone = {**untimed, "block_efficiency": 1.0, "replayed": ReplayedOn("r", 9, 9, 99, low=1.0, high=1.0)}
    runs = [run("a", **{**untimed, "block_efficiency": 2.0}), run("b", **alone)]
    assert names(*runs) == ["a"]
    assert "a (2.00, 1.90 to 2.10)" in verdict([baseline(), *runs]).answer
    assert "none saves a forward pass" in verdict([baseline(), runs[1]]).answer


def test_the_noise_of_a_replays_times_widens_its_interval():
    on = ReplayedOn("r", 9, 9, 99, "machine", noise=0.1)
    runs = [timed("a", 1.4, 1.5, 1.6, replayed=on), timed("b", 1.2, 1.25, 1.3, replayed=on)]
    assert names(*runs) == ["a", "b"]
    assert names(*(replace(one, replayed=replace(on, noise=None)) for one in runs)) == ["a"]
    assert "±10%" in verdict(runs).warnings[0]


def test_doubts_have_their_numbers():
    config = {"sampling": {"temperature": 0}, "repeats": {"min": 3, "max": 9, "spread": 0.05}, "run": {}}
    doubted = {
        "timed": (timed("timed", 1.1, 1.22, 1.25, speedup_bound=1.05), ["1.22×", "1.05×"]),
        "unclear": (timed("unclear", 0.9, 1.05, 1.6), ["0.90× to 1.60×"]),
        "state": (run("state", uneven_calls=(3, 4)), ["3, 4"]),
        "wide": (timed("wide", *[1.0 + 0.1 * n for n in range(1, 10)], config=config), ["9 repeats", "±5%"]),
        "told": (run("told", notes=("gamma was cut",)), ["gamma was cut"]),
    }
    found = verdict([baseline(), *(one for one, _ in doubted.values())]).warnings
    assert len(found) == len(doubted)
    for line, (name, (_, facts)) in zip(found, doubted.items(), strict=True):
        assert line.startswith(f"{name}: ")
        assert all(fact in line for fact in facts)
    assert "b waited for a core for 23%" in verdict([baseline(), run("a"), run("b", cpu_seconds=7.7)]).warnings[0]
    within = timed("a", 1.03, 1.04, 1.05, speedup_bound=1.02)  # clocks are not that exact
    assert verdict([baseline(), within, run("b", cpu_seconds=None), run("c", cpu_seconds=9.5)]).warnings == ()


def test_a_failed_run_is_no_slow_run():
    runs = [baseline(), broken(), timed("later", 1.9, 2.0, 2.1, error="out of memory"), timed("a", 0.8, 0.85, 0.9)]
    found = verdict(runs)
    assert names(*runs[1:]) == ["a"]
    assert found.failures == ("broken failed: Echo at echo.py:7: RuntimeError: it broke (2 times)",)
    assert found.errors == ("later failed: out of memory",)
    row = results_table(runs).rows[1]
    assert (row.cells[0], row.style) == ("broken (failed)", "red")
    (line,) = verdict([baseline(), broken(failures=(FAILURE, FAILURE))]).failures
    assert "4 times" in line


def test_exit_codes():
    departing = run("a", quality=DIFFERS)
    assert exit_code([baseline(), run("a")]) == 0
    assert exit_code([baseline(), broken(), run("a")]) == 1
    assert exit_code([baseline(), departing]) == 1
    assert exit_code([baseline(), broken(), run("gone", **UNMEASURED, error="no such model.")]) == 2
    assert exit_code([baseline(1), run("a", 1, quality=DIFFERS)]) == 0


def test_the_table_says_what_its_numbers_rest_on():
    # Every repeat verifies the same tokens: three times 29 are 29.
    few = run("few", verified_by_position=(60, 27), steps_by_length=(0, 29))
    table = results_table([baseline(), few, run("many")])
    cells = [dict(zip([column.heading for column in table.columns], row.cells, strict=True)) for row in table.rows]
    for heading, value in (("acceptance\nrate", "0.70"), ("c", "0.100"), ("expected\nhere", "1.55×")):
        assert (cells[1][heading], cells[2][heading]) == (f"~{value}", value)
    assert any("30" in note for note in table.notes if note.startswith("~"))
    assert not any(note.startswith("~") for note in results_table([baseline(), run("many")]).notes)
    too_fast = results_table([baseline(), timed("fast", 1.1, 1.22, 1.25, speedup_bound=1.05)]).rows[1]
    assert too_fast.cells[0] == "fast (in doubt)"
    once = results_table([baseline(repeats=1), timed("a", 1.5)])
    assert not any("±" in cell for row in once.rows for cell in row.cells)
    assert "1.50× ±0.15" in results_table([baseline(), timed("a", 1.4, 1.5, 1.7)]).rows[1].cells
