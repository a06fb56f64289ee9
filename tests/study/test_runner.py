"""Running a study on a tiny model: turns, results, interruptions."""

import csv
import json
import shutil

import pytest
import torch

from specdec_core import ConfigError, ModelError, PromptError
from specdec_core.models import load_model
from specdec_core.study.config import TargetConfig
from specdec_core.study.making import load_target
from specdec_core.study.report import write_results
from specdec_core.study.runner import run_study
from specdec_core.study.summary import RunSummary, summarise
from specdec_core.study.table import results_table, verdicts
from specdec_core.theory import walltime_improvement
from tests.tiny import tiny_model

STUDY = """\
target: {folder}
prompts: [a b c, d e, f]
generation: {{max_new_tokens: 12, ignore_eos: true}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: lenient, drafter: {{name: echo, token: 3}}, gamma: 3, lenience: 0.5}}
"""


class Notes:
    """An observer that keeps what it is told, and can stop a study."""

    def __init__(self, stop_after=None):
        self.events = []
        self.stop_after = stop_after

    def began(self, repeats, finished):
        self.events.append(("began", repeats, finished))

    def loading(self, what):
        self.events.append(("loading", what))

    def measuring(self, run, repeat):
        self.events.append(("measuring", run, repeat))
        if self.stop_after is not None and len(self.of("measuring")) > self.stop_after:
            raise KeyboardInterrupt

    def measured(self, run, repeat, tokens_per_second):
        assert tokens_per_second > 0

    def failed(self, run, reason):
        self.events.append(("failed", run, reason))

    def of(self, kind):
        return [event[1:] for event in self.events if event[0] == kind]


def test_runs_take_turns_and_the_baseline_goes_first(study):
    notes = Notes()
    result = run_study(study(), notes)
    names = ["plain", "echo-2", "lenient"]
    assert notes.of("measuring") == [(name, number) for number in (1, 2) for name in names]
    assert set(result.repeats) == {(None, name, number) for name in names for number in (1, 2)}
    assert result.identity["versions"]["specdec-toys"] == "1.0"
    # The same seed in every repeat: the same work is timed.
    for name in names:
        first, second = (result.repeats[None, name, number].metrics for number in (1, 2))
        assert (first["tokens"], first["target_calls"]) == (second["tokens"], second["target_calls"])


@pytest.fixture
def summaries(study):
    return summarise(run_study(study(STUDY, "batch_size=2"), Notes()))


def test_a_summary_follows_from_the_counts(summaries):
    plain, echo, lenient = summaries
    assert (plain.drafter, plain.gamma, plain.alpha, plain.c, plain.speedup) == (None, 0, None, None, 1.0)
    assert plain.tokens == echo.tokens == lenient.tokens == 3 * 12 * 2
    assert plain.block_efficiency == plain.speedup_expected == 1.0
    assert (echo.drafter, echo.gamma, echo.lenience) == ("echo", 2, 1.0)
    assert (lenient.gamma, lenient.lenience) == (3, 0.5)
    for summary in (echo, lenient):
        assert 0 <= summary.alpha <= 1
        assert summary.target_calls <= plain.target_calls
        assert summary.speedup_min <= summary.speedup <= summary.speedup_max
        steps = summary.tokens / summary.block_efficiency
        expected = walltime_improvement(summary.alpha, summary.drafted / steps, summary.c)
        assert summary.speedup_expected == pytest.approx(expected)
        assert sum(summary.judged_by_position) >= summary.accepted
        assert len(summary.alpha_by_position) == len(summary.judged_by_position) <= summary.gamma
        assert summary.speedup_expected_here > 0
        assert summary.gamma_best in range(len(summary.speedup_by_gamma))
        assert summary.speedup_expected_best == max(summary.speedup_by_gamma)
        assert summary.speedup_by_gamma[0] == 1.0
        assert len(summary.speedup_by_gamma) == 4, "0 to the longest draft of any run"
        assert sum(summary.steps_by_length) == summary.target_calls - 2 * 2, "two batches a repeat"
        assert sum(summary.time_shares.values()) == pytest.approx(1)
    assert plain.speedup_expected_here == pytest.approx(1)
    assert plain.verify_cost == echo.verify_cost == lenient.verify_cost
    assert (plain.verdict, plain.gamma_best, plain.draft_cost) == (None, None, ())
    assert echo.deviation == 0 < lenient.deviation


def test_speeds_are_those_of_the_runs_own_repeats(study):
    result = run_study(study(), Notes())
    for summary in summarise(result):
        own = [one.metrics for (_, run, _), one in result.repeats.items() if run == summary.name]
        speeds = [one["tokens"] / one["seconds"] for one in own]
        assert summary.tokens_per_second == pytest.approx(sum(speeds) / 2), "the median of two"
        assert (summary.tokens_per_second_min, summary.tokens_per_second_max) == (min(speeds), max(speeds))


def test_deviation_is_that_of_a_sequence(study):
    result = run_study(study(), Notes())
    spent = sum(repeat.metrics["deviation"] for (_, run, _), repeat in result.repeats.items() if run == "lenient")
    assert spent > 0
    assert summarise(result)[2].deviation == pytest.approx(spent / (3 * 2))


def test_results_are_written_as_promised(study, summaries, tmp_path):
    output = {"task": None, "run": "plain", "prompt": "1", "text": "é", "as_plain": True, "tokens": [1]}
    paths = write_results(tmp_path, study(), summaries, iter([output]))
    assert [path.name for path in paths] == ["results.jsonl", "summary.csv", "outputs.jsonl", "report.html"]
    assert paths[2].read_text(encoding="utf-8") == json.dumps(output, ensure_ascii=False) + "\n"
    page = paths[3].read_text(encoding="utf-8")
    assert "<title>study.yaml</title>" in page
    assert all(text in page for text in ("é", "a b c", "echo-2", "lenient"))
    lines = [json.loads(line) for line in paths[0].read_text().splitlines()]
    assert [line["name"] for line in lines] == ["plain", "echo-2", "lenient"]
    promised = "name drafter gamma lenience tokens target_calls block_efficiency alpha c tokens_per_second speedup"
    assert {*promised.split(), "speedup_expected", "quality"} <= set(lines[1])
    assert lines[1]["config"]["run"]["drafter"] == {"token": 1, "breaks": False, "name": "echo"}
    assert lines[1]["config"]["generation"]["max_new_tokens"] == 12
    assert {"specdec", "torch", "transformers", "python"} <= set(lines[0]["versions"])
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [row["name"] for row in rows] == ["plain", "echo-2", "lenient"]
    assert float(rows[1]["alpha"]) == lines[1]["alpha"]
    assert float(rows[1]["speedup_expected_here"]) == lines[1]["speedup_expected_here"]
    assert float(rows[1]["time_drafting"]) == lines[1]["time_shares"]["drafting"]
    assert rows[1]["verdict"] == lines[1]["verdict"]
    flat = (str, int, float, type(None))
    assert {name for name, value in lines[1].items() if isinstance(value, flat)} - {"quality"} <= set(rows[1])
    assert not any("[" in cell or "{" in cell for row in rows for cell in row.values())


def test_the_table_has_a_row_a_run(summaries):
    table = results_table(summaries)
    assert table.row_count == 3
    headings = [column.header for column in table.columns]
    assert headings[:5] == ["run", "drafter", "γ", "l", "devia-\ntion"]
    assert str(next(iter(table.columns[0].cells))) == "plain"
    strict = results_table(summaries[:2])
    assert not {"l", "devia-\ntion"} & {column.header for column in strict.columns}
    assert "lenience" not in strict.caption


def test_each_run_but_the_baseline_is_judged_in_a_line(summaries):
    lines = verdicts(summaries)
    assert [line.split(":")[0] for line in lines] == ["echo-2", "lenient"]
    assert all(line.endswith(".") for line in lines)


def test_a_stopped_study_goes_on_where_it_was(study, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), Notes(stop_after=4), output=output)
    notes = Notes()
    resumed = run_study(study(), notes, output=output)
    assert notes.of("began") == [(6, 4)]
    assert notes.of("measuring") == [("echo-2", 2), ("lenient", 2)]
    # What is finished needs no drafter.
    assert ("plain",) not in notes.of("loading")
    assert len(resumed.repeats) == 6
    notes = Notes()
    more = run_study(study(STUDY, "repeats=3"), notes, output=output)
    assert notes.of("began") == [(9, 6)]
    assert summarise(more)[0].repeats == 3


def test_a_model_that_was_trained_again_is_another_study(study, model_folder, tmp_path):
    folder = tmp_path / "trained"
    shutil.copytree(model_folder, folder)
    settings, output = (f"target={folder}", "repeats=1"), tmp_path / "out"
    run_study(study(STUDY, *settings), Notes(), output=output)
    tiny_model("gpt2", vocab=9, seed=8).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"another study \(files\..*trained: .* there, .* now\).*--fresh"):
        run_study(study(STUDY, *settings), Notes(), output=output)


def test_repeats_that_another_version_counted_are_refused(study, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), Notes(stop_after=2), output=output)
    journal = output / "repeats.jsonl"
    head, first, *others = [json.loads(line) for line in journal.read_text().splitlines()]
    del first["metrics"]["judged_at"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in (head, first, *others)))
    with pytest.raises(ConfigError, match=r"another version of specdec.*judged_at.*--output.*--fresh"):
        run_study(study(), Notes(), output=output)
    assert len(run_study(study(), Notes(), output=output, fresh=True).repeats) == 6


@pytest.mark.parametrize(
    ("drafter", "reason"),
    [
        ("absent", "drafter 'absent' of specdec-toys 1.0 could not be imported"),
        ("single", "at most 1"),
    ],
)
def test_a_run_that_cannot_be_loaded_is_given_up_alone(study, drafter, reason, monkeypatch):
    text = STUDY + f"  - {{{{drafter: {drafter}, gamma: 1}}}}\n"
    if drafter == "single":
        # Let through by the validation, as for a target whose kind only shows when it is loaded.
        monkeypatch.setattr("specdec_core.study.assembly.unmet_needs", lambda *_, **__: ())
    notes = Notes()
    result = run_study(study(text, "batch_size=2", "repeats=1"), notes)
    assert [name for name, _ in notes.of("failed")] == [f"{drafter}-1"]
    assert reason in result.failed[None, f"{drafter}-1"]
    summary = summarise(result)[-1]
    assert summary.error == result.failed[None, f"{drafter}-1"]
    assert (summary.repeats, summary.speedup, summary.alpha) == (0, None, None)
    assert results_table(summarise(result)).row_count == 4
    assert len(result.repeats) == 3


def test_a_drafter_that_breaks_in_mid_generation_is_reported(study):
    text = STUDY + "  - {{name: broken, drafter: {{name: echo, breaks: true}}, gamma: 2}}\n"
    summary = summarise(run_study(study(text, "repeats=1"), Notes()))[-1]
    assert summary.tokens == 36
    assert summary.alpha is None
    assert summary.speedup_expected is None
    assert summary.gamma_best is None
    assert summary.verdict == "nothing was drafted: every step was one of plain decoding"
    assert "the echo broke" in summary.failures[0]["message"]


def test_a_run_that_needs_no_second_step(study):
    # A draft as long as the text, of which all is kept: nothing is timed but steps with a prompt.
    text = STUDY + "  - {{name: whole, drafter: echo, gamma: 11, lenience: 1.0e-30}}\n"
    summary = summarise(run_study(study(text, "repeats=1"), Notes()))[-1]
    assert (summary.target_calls, summary.steps_by_length, summary.c) == (3, (), None)
    assert (summary.gamma_best, summary.speedup_by_gamma) == (None, ())
    assert "too few steps were timed" in summary.verdict


def test_what_the_target_cannot_do_ends_the_study(study, tmp_path):
    with pytest.raises(PromptError):
        run_study(study(STUDY, f"prompts=[{'a ' * 300}]"), Notes())
    with pytest.raises(ModelError):
        run_study(study(STUDY, f"target={tmp_path}"), Notes())


def test_the_fields_of_a_summary_are_documented():
    for name in RunSummary.__dataclass_fields__:
        assert f"        {name}: " in RunSummary.__doc__


def test_a_target_may_be_inflated_and_says_the_same(tmp_path):
    config = TargetConfig.model_validate({"model": "builtin:drafter", "inflate": {"layers": 2, "width": 64}})
    larger, plain = load_target(config, tmp_path), load_model("builtin:drafter")
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(larger.model(ids).logits, plain.model(ids).logits)
    assert len(larger.model.model.layers) == len(plain.model.model.layers) + 2
