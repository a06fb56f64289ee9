"""Running a study on a tiny model: turns, results, interruptions."""

import csv
import json
import shutil
from dataclasses import fields, replace
from statistics import median
from weakref import WeakKeyDictionary

import pytest

from specdec_core.decoding import chat
from specdec_core.decoding.counts import StepTimes
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.errors import PromptError
from specdec_core.study.report.result_files import first_outputs, write_results
from specdec_core.study.report.summary import RunSummary, summarize
from specdec_core.study.report.tables import request_table, results_table
from specdec_core.study.run.finished_repeats import Output, Repeats
from specdec_core.study.run.runner import run_study
from specdec_core.theory.speed import walltime_improvement
from tests.study.toy_study import STUDY, Recorder, in_turn
from tests.tiny import tiny_model


def test_runs_take_turns_in_a_random_order_that_stays_the_same(study):
    (task,) = study().tasks
    orders = {tuple(name for name, _ in in_turn(task, number)) for number in range(1, 40)}
    assert len(orders) == 6, "all orders of three runs"
    assert {order[0] for order in orders} == {"baseline", "echo-2", "lenient"}
    assert in_turn(task, 1, 2, 3) == in_turn(study().tasks[0], 1, 2, 3)
    other = study(STUDY, "generation.seed=7").tasks[0]
    assert in_turn(task, *range(1, 9)) != in_turn(other, *range(1, 9))


def test_each_repeat_times_every_run_once(study):
    recorder = Recorder()
    loaded = study()
    result = run_study(loaded, recorder)
    names = ["baseline", "echo-2", "lenient"]
    assert recorder.timed == in_turn(loaded.tasks[0], 1, 2)
    for number in (1, 2):
        found = {run: one.turn for (_, run, n), one in result.repeats.items() if n == number}
        assert sorted(found, key=found.get) == [name for name, _ in in_turn(loaded.tasks[0], number)]
    assert all(repeat.cpu_seconds > 0 for repeat in result.repeats.values())
    assert set(result.repeats) == {(None, name, number) for name in names for number in (1, 2)}
    assert result.provenance["plugins"]["baseline"] == {}
    assert result.provenance["plugins"]["echo-2"]["specdec-toys"].startswith("1.0 ")
    timing = [(done, note) for stage, done, note in recorder.done if stage == "timing"]
    assert [done for done, _ in timing] == pytest.approx([position / 3 for position in range(19)])
    first, *_ = recorder.timed
    assert [note for _, note in timing[1:3]] == [f"{first[0]}, repeat 1"] * 2
    # The same seed in every repeat: the same work is timed.
    for name in names:
        first, second = (result.repeats[None, name, number].metrics for number in (1, 2))
        assert (first.tokens, first.target_calls) == (second.tokens, second.target_calls)


def test_outputs_do_not_depend_on_the_batch_size(result_of):
    alone, together = (result_of(STUDY, f"batch_size={size}").repeats for size in (1, 2))
    assert {key: one.outputs for key, one in alone.items()} == {key: one.outputs for key, one in together.items()}


def test_warming_up_is_shorter_than_the_least_length(result_of):
    found = result_of(STUDY, "generation.max_new_tokens=12", "generation.min_new_tokens=12").repeats
    assert {len(one.tokens) for repeat in found.values() for one in repeat.outputs} == {12}


@pytest.fixture
def summaries(result_of):
    return summarize(result_of(STUDY, "batch_size=2"))


def test_a_summary_follows_from_the_counts(summaries):
    baseline, echo, lenient = summaries
    assert (baseline.drafter, baseline.gamma) == (None, 0)
    assert (baseline.alpha, baseline.c, baseline.speedup) == (None, None, 1.0)
    assert baseline.tokens == echo.tokens == lenient.tokens == 3 * 12 * 2
    assert baseline.block_efficiency == baseline.speedup_expected == 1.0
    assert (echo.drafter, echo.gamma, echo.lenience) == ("echo", 2, 1.0)
    assert (lenient.gamma, lenient.lenience) == (3, 0.5)
    for summary in (echo, lenient):
        assert 0 <= summary.alpha <= 1
        assert summary.target_calls <= baseline.target_calls
        assert summary.speedup_min <= summary.speedup <= summary.speedup_max
        steps = summary.tokens / summary.block_efficiency
        expected = walltime_improvement(summary.alpha, summary.drafted / steps, summary.c)
        assert summary.speedup_expected == pytest.approx(expected)
        assert sum(summary.verified_by_position) >= summary.accepted
        assert len(summary.alpha_by_position) == len(summary.verified_by_position) <= summary.gamma
        assert summary.speedup_expected_here > 0
        assert summary.gamma_best in range(len(summary.speedup_by_gamma))
        assert summary.speedup_expected_best == max(summary.speedup_by_gamma)
        assert summary.speedup_by_gamma[0] == 1.0
        assert len(summary.speedup_by_gamma) == 4, "0 to the longest draft of any run"
        assert sum(summary.steps_by_length) == summary.target_calls - 2 * 2, "two batches a repeat"
        assert sum(summary.time_shares.values()) == pytest.approx(1)
    assert baseline.speedup_expected_here == pytest.approx(1)
    assert baseline.verify_cost == echo.verify_cost == lenient.verify_cost
    assert (baseline.diagnosis, baseline.gamma_best, baseline.draft_cost) == (None, None, ())
    assert None not in (echo.diagnosis, lenient.diagnosis)
    assert (echo.lossless, lenient.lossless) == (True, False)
    assert echo.deviation == 0 < lenient.deviation


def test_speeds_and_costs_are_medians_over_the_repeats(result_of):
    result = result_of(STUDY, "batch_size=2")
    repeats = list(result.repeats.values())
    for one in repeats[:]:  # the third is disturbed: its steps with a draft take nine times as long
        if one.repeat == 2:
            none, *some = one.metrics.times
            slow = [StepTimes(t.steps, 9 * t.draft_seconds, 9 * t.verify_seconds, 9 * t.seconds) for t in some]
            changed = {"seconds": 9 * one.metrics.seconds, "times": (none, *slow)}
            repeats.append(replace(one, repeat=3, metrics=replace(one.metrics, **changed)))

    def figures(*numbers):
        some = Repeats(one for one in repeats if one.repeat in numbers)
        _, echo, _ = summarize(replace(result, repeats=some))
        costs = (one for one in (*echo.draft_cost, *echo.verify_cost) if one is not None)
        return [echo.tokens_per_second, echo.speedup, echo.c, *costs, *echo.speedup_by_gamma]

    apart = [figures(number) for number in (1, 2, 3)]
    assert figures(1, 2, 3) == pytest.approx(list(map(median, zip(*apart, strict=True))))
    own = [one.metrics for one in repeats if one.run == "echo-2"]
    assert [one[0] for one in apart] == pytest.approx([one.tokens / one.seconds for one in own])


def test_requests_have_figures_of_their_own(result_of, tmp_path):
    result = result_of(STUDY, "batch_size=2")
    baseline, echo, _ = summarize(result)
    outputs = first_outputs(result)
    each = [one.metrics for one in outputs[None, "echo-2"]]
    figures, percentiles = echo.speculative_decoding, echo.percentiles
    assert figures["num_accepted_draft_tokens"] == echo.accepted / echo.repeats > 0
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"])
    lengths = [one.mean_acceptance_length for one in each]
    assert len(set(lengths)) > 1
    assert percentiles["mean_acceptance_length"]["p50"] == pytest.approx(median(lengths))
    assert percentiles["mean_acceptance_length"]["max"] == max(lengths)
    seconds = percentiles["seconds"]
    assert 0 < seconds["min"] <= seconds["p10"] <= seconds["p50"] <= seconds["p99"] <= seconds["max"]
    assert baseline.speculative_decoding is None
    assert set(baseline.percentiles) == {"seconds"}

    paths, _ = write_results(tmp_path, result.study, [baseline, echo], outputs)
    lines = [json.loads(line) for line in paths[2].read_text().splitlines()]
    written = [one["metrics"]["speculative_decoding"] for one in lines if one["run"] == "echo-2"]
    assert written == [one.to_plain(detailed=True) for one in each]
    row = list(csv.DictReader(paths[1].read_text().splitlines()))[1]
    assert float(row["request_mean_acceptance_length_p90"]) == percentiles["mean_acceptance_length"]["p90"]
    assert "Percentiles over the requests" in paths[3].read_text()


def test_the_acceptance_of_thinking_parts_is_apart(study, monkeypatch):
    monkeypatch.setattr(chat, "MARKS", (("f", "d"),))  # one prompt opens a thinking part
    result = run_study(study(STUDY, "repeats=1"), Recorder())
    baseline, echo, _ = summarize(result)
    parts, whole = echo.thinking, echo.speculative_decoding
    assert parts["inside"]["num_spec_steps"] + parts["outside"]["num_spec_steps"] == whole["num_spec_steps"]
    assert 0 < parts["inside"]["num_spec_steps"] < whole["num_spec_steps"]
    assert baseline.thinking is None
    headings = [column.heading for column in request_table([baseline, echo]).columns]
    assert "mean acceptance length, thinking\ninside" in headings


def test_deviation_is_that_of_a_sequence(result_of):
    result = result_of(STUDY, "batch_size=2")
    spent = sum(repeat.metrics.deviation for (_, run, _), repeat in result.repeats.items() if run == "lenient")
    assert spent > 0
    assert summarize(result)[2].deviation == pytest.approx(spent / (3 * 2))


def test_results_are_written_as_promised(study, summaries, tmp_path):
    loaded = study()
    paths, problems = write_results(tmp_path, loaded, summaries, {(None, "baseline"): (Output((1,), "é"),)})
    assert problems == []
    assert [path.name for path in paths] == ["results.jsonl", "summary.csv", "outputs.jsonl", "report.html"]
    assert json.loads(paths[2].read_text(encoding="utf-8")) == {
        **{
            "task": None,
            "run": "baseline",
            "prompt": "1",
            "turn": 1,
            "source": None,
            "text": "é",
            "references": [],
        },
        **{"finish_reason": None, "same_as_baseline": True, "tokens": [1]},
        "metrics": {"speculative_decoding": None},
    }
    assert "é" in paths[2].read_text(encoding="utf-8")
    page = paths[3].read_text(encoding="utf-8")
    assert "<title>study.yaml</title>" in page
    assert all(text in page for text in ("é", "a b c", "echo-2", "lenient"))
    lines = [json.loads(line) for line in paths[0].read_text().splitlines()]
    assert [line["name"] for line in lines] == ["baseline", "echo-2", "lenient"]
    promised = "name drafter gamma lenience tokens target_calls block_efficiency alpha c tokens_per_second speedup"
    assert {*promised.split(), "speedup_expected", "quality"} <= set(lines[1])
    assert lines[1]["config"]["run"]["drafter"] == {"token": 1, "breaks": False, "name": "echo"}
    assert lines[1]["config"]["generation"]["max_new_tokens"] == 12
    assert {"specdec", "torch", "transformers", "python"} <= set(lines[0]["versions"])
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [row["name"] for row in rows] == ["baseline", "echo-2", "lenient"]
    assert float(rows[1]["alpha"]) == lines[1]["alpha"]
    assert float(rows[1]["speedup_expected_here"]) == lines[1]["speedup_expected_here"]
    assert float(rows[1]["time_drafting"]) == lines[1]["time_shares"]["drafting"]
    assert rows[1]["diagnosis"] == lines[1]["diagnosis"]
    flat = (str, int, float, type(None))
    assert {name for name, value in lines[1].items() if isinstance(value, flat)} - {
        "quality",
        "replayed",
        "forecast",
    } <= set(rows[1])
    assert not any("[" in cell or "{" in cell for row in rows for cell in row.values())


BRIEF = "generation.max_new_tokens=2"


def test_a_stopped_study_goes_on_where_it_was(study, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(study(STUDY, BRIEF), Recorder(stop_after=4), output=output)
    recorder = Recorder()
    resumed = run_study(study(STUDY, BRIEF), recorder, output=output)
    assert recorder.resumed == [(6, 4)]
    assert recorder.timed == in_turn(study(STUDY, BRIEF).tasks[0], 1, 2)[4:]
    assert len(resumed.repeats) == 6
    recorder = Recorder()
    more = run_study(study(STUDY, BRIEF, "repeats=3"), recorder, output=output)
    assert recorder.resumed == [(9, 6)]
    assert summarize(more)[0].repeats == 3


def test_a_model_that_was_trained_again_is_another_study(study, model_folder, tmp_path):
    folder = tmp_path / "trained"
    shutil.copytree(model_folder, folder)
    settings, output = (f"target={folder}", "repeats=1", BRIEF), tmp_path / "out"
    run_study(study(STUDY, *settings), Recorder(), output=output)
    tiny_model("gpt2", vocab=9, seed=8).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"another study \(files\..*trained: .* there, .* now\).*--fresh"):
        run_study(study(STUDY, *settings), Recorder(), output=output)


def test_repeats_that_another_version_counted_are_refused(study, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(study(STUDY, BRIEF), Recorder(stop_after=2), output=output)
    journal = output / "repeats.jsonl"
    head, first, *others = [json.loads(line) for line in journal.read_text().splitlines()]
    del first["metrics"]["verified_at"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in (head, first, *others)))
    with pytest.raises(ConfigError, match=r"repeats.jsonl:2: .*verified_at.*--output.*--fresh"):
        run_study(study(STUDY, BRIEF), Recorder(), output=output)
    assert len(run_study(study(STUDY, BRIEF), Recorder(), output=output, fresh=True).repeats) == 6


def test_a_run_that_cannot_be_loaded_is_given_up_alone(study):
    text = STUDY + "  - {{drafter: absent, gamma: 1}}\n"
    recorder = Recorder()
    result = run_study(study(text, "repeats=1", BRIEF), recorder)
    assert list(result.failed) == [(None, "absent-1")]
    assert "drafter 'absent' of specdec-toys 1.0" in result.failed[None, "absent-1"]
    summary = summarize(result)[-1]
    assert summary.error == result.failed[None, "absent-1"]
    assert (summary.repeats, summary.speedup, summary.alpha) == (0, None, None)
    assert len(results_table(summarize(result)).rows) == 4
    assert len(result.repeats) == 3


def test_a_drafter_that_breaks_in_mid_generation_is_reported(study):
    text = STUDY + "  - {{name: broken, drafter: {{name: echo, breaks: true}}, gamma: 2}}\n"
    summary = summarize(run_study(study(text, "repeats=1"), Recorder()))[-1]
    assert summary.tokens == 36
    assert summary.alpha is None
    assert summary.speedup_expected is None
    assert summary.gamma_best is None
    assert "the echo broke" in summary.failures[0]["message"]


def test_a_run_that_needs_no_second_step(study):
    # A draft as long as the text, of which all is kept: nothing is timed but steps with a prompt.
    text = STUDY + "  - {{name: whole, drafter: echo, gamma: 11, lenience: 1.0e-30}}\n"
    summary = summarize(run_study(study(text, "repeats=1"), Recorder()))[-1]
    assert (summary.target_calls, summary.steps_by_length, summary.c) == (3, (), None)
    assert (summary.gamma_best, summary.speedup_by_gamma) == (None, ())
    assert "fewer than 30 steps" in summary.diagnosis


def test_what_the_target_cannot_do_ends_the_study(study, tmp_path):
    with pytest.raises(PromptError):
        run_study(study(STUDY, f"prompts=[{'a ' * 300}]"), Recorder())
    with pytest.raises(ModelError):
        run_study(study(STUDY, f"target={tmp_path}"), Recorder())


def test_the_fields_of_a_summary_are_documented():
    for field in fields(RunSummary):
        assert f"        {field.name}: " in RunSummary.__doc__


@pytest.fixture
def clock(monkeypatch):
    """Let a function of drafter and repeat say how many seconds a run takes, when all prompts are one batch."""

    real, calls = Decoder.stream, WeakKeyDictionary()

    def use(seconds):
        def stream(self, *args, **kwargs):
            result = yield from real(self, *args, **kwargs)
            calls[self] = repeat = calls.get(self, -1) + 1  # 0 warms up
            taken = seconds(self.drafter is not None, repeat)
            return replace(result, metrics=result.metrics.with_seconds(taken))

        monkeypatch.setattr(Decoder, "stream", stream)

    return use


def count_of(result):
    """Return the number of repeats, which is that of every run."""
    (count,) = {sum(key[:2] == other[:2] for other in result.repeats) for key in result.repeats}
    return count


def test_repeats_end_when_the_speedups_are_known(study, clock):
    short = ("batch_size=3", "generation.max_new_tokens=1")  # the clock says how long it takes
    auto = study(STUDY, "repeats=auto", *short)
    clock(lambda drafts, repeat: 2.0 if drafts else 1.0)
    assert count_of(run_study(auto, Recorder())) == 3
    # The range of the repeats keeps an outlier, the interval of nine leaves it out.
    clock(lambda drafts, repeat: 9.0 if drafts and repeat == 2 else 1.0)
    assert count_of(run_study(auto, Recorder())) == 9
    some = study(STUDY, "repeats={min: 1, max: 4, spread: 0.2}", *short)
    clock(lambda drafts, repeat: (1.0, 1.3)[repeat % 2] if drafts else 1.0)
    assert count_of(run_study(some, Recorder())) == 2
    clock(lambda drafts, repeat: (1.0, 2.0)[repeat % 2] if drafts else 1.0)
    assert count_of(run_study(some, Recorder())) == 4


def test_repeats_that_suffice_are_not_continued(study, clock, tmp_path):
    auto = study(STUDY, "repeats={max: 6}", "batch_size=3", BRIEF)
    clock(lambda drafts, repeat: 2.0 if drafts else 1.0)
    with pytest.raises(KeyboardInterrupt, match="5 of at most 18 repeats are stored"):
        run_study(auto, Recorder(stop_after=5), output=tmp_path)
    assert count_of(run_study(auto, Recorder(), output=tmp_path)) == 3
    recorder = Recorder()
    assert count_of(run_study(auto, recorder, output=tmp_path)) == 3
    assert recorder.timed == []
    assert "timing" not in recorder.stages


def test_speedups_are_those_of_the_same_repeat(study, clock):
    clock(lambda drafts, repeat: (1.0, 1.0, 5.0, 2.0)[repeat] * (0.5 if drafts else 1.0))
    baseline, echo, _ = summarize(run_study(study(STUDY, "repeats=3", "batch_size=3", BRIEF), Recorder()))
    assert (echo.speedup_min, echo.speedup, echo.speedup_max) == (2.0, 2.0, 2.0)
    assert (echo.speedup_low, echo.speedup_high) == (2.0, 2.0)
    assert baseline.tokens_per_second_min < baseline.tokens_per_second_max
    assert echo.speedup_bound == echo.block_efficiency
    clock(lambda drafts, repeat: 1.0)
    once = summarize(run_study(study(STUDY, "repeats=1", "batch_size=3", BRIEF), Recorder()))[1]
    assert (once.speedup_low, once.speedup_high) == (None, None)
