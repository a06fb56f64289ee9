"""Running a study on a tiny model: turns, results, interruptions."""

import csv
import json

import pytest
import torch

from specdec_core import ModelError, PromptError
from specdec_core.models import load_model
from specdec_core.study import load_study
from specdec_core.study.config import TargetConfig
from specdec_core.study.report import RunSummary, Spread, summarise, write_results
from specdec_core.study.runner import load_target, run_study
from specdec_core.study.table import results_table
from specdec_core.theory import walltime_improvement

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


@pytest.fixture
def study(tmp_path, toys, model_folder):
    def load(text=STUDY, *settings):
        path = tmp_path / "study.yaml"
        path.write_text(text.format(folder=model_folder))
        return load_study(path, settings)

    return load


def test_runs_take_turns_and_the_baseline_goes_first(study):
    notes = Notes()
    result = run_study(study(), notes)
    names = ["plain", "echo-2", "lenient"]
    assert notes.of("measuring") == [(name, number) for number in (1, 2) for name in names]
    assert set(result.repeats) == {(name, number) for name in names for number in (1, 2)}
    assert result.identity["versions"]["specdec-toys"] == "1.0"
    # The same seed in every repeat: the same work is timed.
    for name in names:
        first, second = (result.repeats[name, number].metrics for number in (1, 2))
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


def test_results_are_written_as_promised(summaries, tmp_path):
    paths = write_results(tmp_path, summaries)
    assert [path.name for path in paths] == ["results.jsonl", "summary.csv"]
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


def test_the_table_has_a_row_a_run(summaries):
    table = results_table(summaries)
    assert table.row_count == 3
    headings = [column.header for column in table.columns]
    assert headings[:4] == ["run", "drafter", "γ", "lenience"]
    assert next(iter(table.columns[0].cells)) == "plain"
    assert "lenience" not in [column.header for column in results_table(summaries[:2]).columns]


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
        monkeypatch.setattr("specdec_core.study.study.unmet_needs", lambda *_, **__: ())
    notes = Notes()
    result = run_study(study(text, "batch_size=2", "repeats=1"), notes)
    assert [name for name, _ in notes.of("failed")] == [f"{drafter}-1"]
    assert reason in result.failed[f"{drafter}-1"]
    summary = summarise(result)[-1]
    assert summary.error == result.failed[f"{drafter}-1"]
    assert (summary.repeats, summary.speedup, summary.alpha) == (0, None, None)
    assert results_table(summarise(result)).row_count == 4
    assert len(result.repeats) == 3


def test_a_drafter_that_breaks_in_mid_generation_is_reported(study):
    text = STUDY + "  - {{name: broken, drafter: {{name: echo, breaks: true}}, gamma: 2}}\n"
    summary = summarise(run_study(study(text, "repeats=1"), Notes()))[-1]
    assert summary.tokens == 36
    assert summary.alpha is None
    assert summary.speedup_expected is None
    assert "the echo broke" in summary.failures[0]["message"]


def test_what_the_target_cannot_do_ends_the_study(study):
    with pytest.raises(PromptError):
        run_study(study(STUDY, f"prompts=[{'a ' * 300}]"), Notes())
    with pytest.raises(ModelError):
        run_study(study(STUDY, "target=no-such-owner/no/such/model"), Notes())


def test_spread():
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3)


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
