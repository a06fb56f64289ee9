"""The verdict on a task: what timings can tell, and what failed."""

from dataclasses import replace

import pytest

from specdec_core.study.report.html.charts import speed_chart
from specdec_core.study.report.tables import results_table
from specdec_core.study.report.verdict import exit_code, verdict
from specdec_core.theory.intervals import median_interval
from tests.study.summaries import QUALITY, UNMEASURED, baseline, run, timed

DIFFERS = {**QUALITY, "exact": 0.5, "first_difference": (0, 2)}
FAILURE = {"plugin": "Echo", "step": 3, "message": "RuntimeError: it broke", "where": "echo.py:7", "times": 2}


def broken(name="broken", **changed):
    return run(name, **{**UNMEASURED, "quality": QUALITY, "failures": (FAILURE,), **changed})


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            [run("a"), run("b", speedup=1.2, speedup_min=1.1, speedup_max=1.3)],
            "the fastest run is a, 1.50× the speed of the baseline (expected here 1.55×); its outputs",
        ),
        (
            [run("a", speedup_expected_here=None)],
            "the fastest run is a, 1.50× the speed of the baseline; its outputs are those",
        ),
        (
            [run("a", speedup=0.9, speedup_min=0.8, speedup_max=0.95)],
            "no run was faster than the baseline; the nearest is a, 0.90×",
        ),
        ([run("a", quality={**DIFFERS, "exact": 0.999})], "; only 99% of its outputs are those of the baseline."),
        (
            [run("a", 1, quality={**DIFFERS, "exact": 0.1})],
            "; its outputs are other samples from the target's dist",
        ),
        ([run("a", quality=None)], "1.50× the speed of the baseline (expected here 1.55×)."),
        (
            [timed("l", 1.9, 2.0, 2.1, lenience=0.5, lossless=False), run("a")],
            "Without lenience, the fastest lossless run is a, 1.50×",
        ),
        ([run("a", **UNMEASURED)], "no run was measured except the baseline."),
        ([], "no run was measured except the baseline."),
    ],
)
def test_the_answer_in_a_sentence(runs, said):
    assert said in verdict([baseline(), *runs]).answer


def test_runs_whose_repeats_overlap_are_not_told_apart():
    runs = [baseline(), timed("a", 1.4, 1.5, 1.6), timed("b", 1.35, 1.45, 1.5), timed("c", 1.1, 1.2, 1.3)]
    assert verdict(runs).answer.startswith("the fastest run is one of a (1.50×) and b (1.45×)")
    runs[2] = timed("b", 1.35, 1.38, 1.39)
    assert verdict(runs).answer.startswith("the fastest run is a, 1.50×")
    departing = [baseline(), run("a"), run("b", quality=DIFFERS)]
    assert "b (1.50×, departs from the baseline)" in verdict(departing).answer
    lenient = timed("l", 1.5, 1.6, 1.7, lenience=0.5, lossless=False)
    answer = verdict([*runs, lenient]).answer
    assert answer.startswith("the fastest run is one of l (1.60×, lenient) and a (1.50×)")
    assert "the fastest lossless run is a, 1.50×" in answer


def test_repeats_on_both_sides_of_the_baseline_decide_nothing():
    found = verdict([baseline(), timed("a", 0.9, 1.05, 1.6), timed("b", 0.7, 0.8, 0.85)])
    assert found.answer.startswith("no run is clearly faster than the baseline; the fastest is a, 1.05×")
    told = "not to be told from the baseline, as repeats lie on both sides of it: a (0.90× to 1.60×)."
    assert found.warnings == (told,)
    found = verdict([baseline(), timed("a", 0.9, 1.05, 1.6), timed("b", 1.1, 1.2, 1.3)])
    assert found.answer.startswith("the fastest run is one of b (1.20×) and a (1.05×):")
    assert "a (0.90× to 1.60×)" in found.warnings[0]
    assert "b (" not in found.warnings[0]


def test_outliers_among_many_repeats_do_not_hide_a_difference():
    a, b = [1.5] * 11 + [0.8], [1.2] * 11 + [2.0]
    assert verdict([baseline(), timed("a", *a), timed("b", *b)]).answer.startswith("the fastest run is a, 1.50×")
    few = [baseline(), timed("a", *a[-3:]), timed("b", *b[-3:])]
    assert "cannot be told apart" in verdict(few).answer


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((1.5,), "no run is called the fastest; set `repeats` to 3 or more"),
        ((1.5, 1.5), "2 repeats show too little of the spread, so no run is called the fastest; set `repeats`"),
    ],
)
def test_one_or_two_repeats_rank_nothing(speedups, said):
    found = verdict([baseline(repeats=len(speedups)), timed("a", *speedups), timed("b", *[0.5] * len(speedups))])
    assert found.answer.startswith("the highest speed-up is that of a, 1.50× the speed of the baseline")
    assert said in found.answer
    assert found.warnings == ()


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_a_run_that_was_not_faster_than_the_baseline_is_not_praised(repeats):
    slow = timed("a", *[0.03] * repeats)
    for runs in ([slow], [slow, timed("b", *[0.97, 0.98, 1.05][:repeats])]):
        answer = verdict([baseline(repeats=repeats), *runs]).answer
        assert answer.startswith(f"no run was faster than the baseline; the nearest is {runs[-1].name}, ")
        assert "highest" not in answer
        assert "the fastest" not in answer.replace("called the fastest", "")


def test_no_run_that_saves_no_pass_is_praised_without_times():
    runs = [baseline(**UNMEASURED), run("a", **{**UNMEASURED, "block_efficiency": 1.0})]
    answer = verdict([replace(one, config={**one.config, "timing": False}) for one in runs]).answer
    assert answer.startswith("no run needed fewer forward passes of the target than the baseline")


def test_one_repeat_has_no_spread_in_the_table():
    once = results_table([baseline(repeats=1), timed("a", 1.5)])
    assert not any("±" in cell for row in once.rows for cell in row.cells)
    assert "1.50×" in once.rows[1].cells
    assert "Wall time of one repeat: no spread is known." in once.notes
    thrice = results_table([baseline(), timed("a", 1.4, 1.5, 1.7)])
    assert "1.50× ±0.15" in thrice.rows[1].cells
    assert thrice.notes[0].startswith(
        "Wall time: median of 3 repeats ± half their range; runs that overlap are not"
    )


def test_a_run_faster_than_its_tokens_per_target_call_allow_is_not_trusted():
    lucky = timed("random", 1.1, 1.22, 1.25, speedup_bound=1.05)
    found = verdict([baseline(), lucky, timed("a", 1.1, 1.12, 1.15)])
    assert found.answer.startswith("the fastest run is a, 1.12×")
    (warning,) = found.warnings
    assert warning.startswith("random: the timing is not to be trusted. 1.22× was measured")
    assert "1.05× at most" in warning
    assert verdict([baseline(), lucky]).answer == "no run can be ranked; the warnings say why."
    (bar,) = speed_chart([baseline(), lucky]).bars
    assert bar.value == "1.22× (not trusted)"
    assert bar.words.endswith("which is not to be trusted.")
    within = timed("random", 1.03, 1.04, 1.05, speedup_bound=1.02)
    assert verdict([baseline(), within]).warnings == (), "clocks are not that exact"


def test_a_busy_machine_is_told():
    found = verdict([baseline(), run("a", cpu_seconds=7.7), run("b", cpu_seconds=9.5)])
    (warning,) = found.warnings
    assert "a waited for a core for 23% of its time" in warning
    assert verdict([baseline(), run("a", cpu_seconds=None)]).warnings == (), "the thread sleeps while a GPU works"


def test_repeats_until_stable_are_told_with_what_they_did_not_reach():
    config = {"sampling": {"temperature": 0}, "repeats": {"min": 3, "max": 9, "spread": 0.05}, "task": None}
    noisy = timed("noisy", *[1.0 + 0.1 * n for n in range(9)], config=config)
    quiet = timed("quiet", *[1.5] * 9, config=config)
    found = verdict([baseline(repeats=9, config=config), noisy, quiet])
    told = "after 9 repeats not known to ±5%: noisy (±21%). Time the study again on a quiet machine."
    assert told in found.warnings
    notes = results_table([baseline(repeats=9, config=config), quiet]).notes
    assert "Repeated until every speed-up was known to ±5%, 9 times at most." in notes
    assert "Speed-up: ± half the 95% confidence interval of the median." in notes
    assert not any("not known" in line for line in verdict([baseline(repeats=9, config=config), quiet]).warnings)


def test_a_failed_run_is_no_slow_run():
    runs = [baseline(), broken(), timed("a", 0.8, 0.85, 0.9)]
    found = verdict(runs)
    assert found.answer.startswith("no run was faster than the baseline; the nearest is a, 0.85×")
    (failure,) = found.failures
    assert failure.startswith("broken failed: Echo at echo.py:7 (2 times): RuntimeError: it broke.")
    row = results_table(runs).rows[1]
    assert (row.cells[0], row.style) == ("broken (failed)", "red")
    refused = {**FAILURE, "message": "a draft of 3 tokens, but 2 were asked for.", "where": "", "times": 1}
    (line,) = verdict([baseline(), broken(failures=(refused,))]).failures
    assert line.startswith("broken failed: Echo: a draft of 3 tokens, but 2 were asked for. No token")
    (line,) = verdict([baseline(), broken(failures=(FAILURE, FAILURE))]).failures
    assert "(4 times)" in line


def test_a_run_that_was_abandoned_after_a_repeat_is_not_ranked():
    later = timed("later", 1.9, 2.0, 2.1, error="out of memory")
    assert verdict([baseline(), later, run("a")]).answer.startswith("the fastest run is a,")
    found = verdict([baseline(), later])
    assert (found.errors, found.failures) == (("later failed: out of memory.",), ())


def test_exit_codes():
    departing = run("a", quality=DIFFERS)
    assert exit_code([baseline(), run("a")]) == 0
    assert exit_code([baseline(), broken(), run("a")]) == 1
    assert exit_code([baseline(), departing]) == 1
    assert exit_code([baseline(), broken(), run("gone", **UNMEASURED, error="no such model.")]) == 2
    sampled = run("a", 1, quality=DIFFERS)
    assert exit_code([baseline(1), sampled]) == 0


def test_rates_from_a_few_tokens_are_marked():
    # Every repeat verifies the same tokens: three times 29 are 29.
    few = run("few", verified_by_position=(60, 27), steps_by_length=(0, 29))
    table = results_table([baseline(), few, run("many")])
    cells = [dict(zip([column.heading for column in table.columns], row.cells, strict=True)) for row in table.rows]
    for heading, value in (("acceptance\nrate", "0.70"), ("c", "0.100"), ("expected\nhere", "1.55×")):
        assert (cells[1][heading], cells[2][heading]) == (f"~{value}", value)
    (note,) = [note for note in table.notes if note.startswith("~")]
    assert "fewer than 30" in note
    assert not any(note.startswith("~") for note in results_table([baseline(), run("many")]).notes)


@pytest.mark.parametrize(
    ("count", "dropped"),
    [(2, 0), (3, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (17, 4), (20, 5), (10_000, 4901)],
)
def test_the_interval_of_a_median_leaves_out_the_extremes_of_many(count, dropped):
    # Conover's table of the sign test at 5%: the first rank inside is one more than those left out.
    assert median_interval(range(count, 0, -1)) == (1 + dropped, count - dropped)


def test_a_single_value_has_no_interval():
    assert median_interval([1.0]) is None
