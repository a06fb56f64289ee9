"""Drafters that keep knowledge between requests: no repeat profits from another, and who does is named."""

import json
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from specdec_core.interface import ConfigError, DeterministicDrafter
from specdec_core.study.report.summary import summarize, uneven_calls
from specdec_core.study.report.tables import results_table
from specdec_core.study.report.verdict import fastest, verdict
from specdec_core.study.run.prepared import RunJob
from specdec_core.study.run.runner import run_study
from tests.pairwise import some
from tests.remembering import install
from tests.study.toy_study import Recorder

STUDY = """\
target: {folder}
prompts: [a b c, d e, f]
sampling: {{temperature: 0}}
generation: {{max_new_tokens: 10, ignore_eos: true}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{drafter: shared, gamma: 2}}
  - {{drafter: sly, gamma: 2}}
  - {{name: stubborn, drafter: {{name: shared, forgets: false}}, gamma: 2}}
"""
HOT = STUDY.replace("temperature: 0", "temperature: 1")
WARM = STUDY.replace("sampling:", "warmup_prompts: [a b d, h]\nsampling:")


@pytest.fixture
def toys(toys):
    install(toys)
    return toys


def calls(result, run, task=0):
    repeats = result.of_run(result.study.tasks[task], run)
    return [one.metrics.target_calls for one in repeats.values()]


def by_name(result):
    return {one.name: one for one in summarize(result)}


@pytest.fixture
def result(result_of):
    return result_of()


def test_a_repeat_begins_with_nothing_that_an_earlier_one_taught(result):
    assert len(set(calls(result, "shared-2"))) == 1
    assert len(set(calls(result, "echo-2"))) == 1
    sly = calls(result, "sly-2")
    assert len(set(sly)) > 1
    # It knows the prompts from the start, as loading a run decodes some.
    assert max(sly) < calls(result, "shared-2")[0]


@pytest.mark.parametrize("text", some([HOT, STUDY], 1), ids=["sampled", "greedy"])
def test_a_run_that_remembers_without_saying_so_is_named_and_not_ranked(result_of, text):
    result = result_of(text)
    runs = by_name(result)
    assert {name for name, one in runs.items() if one.uneven_calls} == {"sly-2", "stubborn"}
    assert runs["sly-2"].uneven_calls == tuple(calls(result, "sly-2"))
    (said,) = (line for line in verdict(list(runs.values())).warnings if line.startswith("sly-2: it keeps state"))
    assert str(calls(result, "sly-2"))[1:-1] in said
    assert not {one.name for one in fastest(list(runs.values()))} & {"sly-2", "stubborn"}
    cells = [row.cells[0] for row in results_table(list(runs.values())).rows]
    assert "sly-2 (keeps state)" in cells
    assert {"shared-2", "shared-2 (in doubt)"} & set(cells)  # on a busy machine its times say nothing


def test_results_say_who_remembers(result):
    runs = by_name(result)
    assert [name for name, one in runs.items() if one.remembers] == ["shared-2", "stubborn"]
    assert runs["shared-2"].flat()["remembers"] is True
    assert any("shared-2" in note for note in results_table(list(runs.values())).notes)


def test_what_a_stopped_study_resumes_has_the_same_counts(study, result, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), Recorder(stop_after=6), output=tmp_path / "out")
    resumed = run_study(study(), Recorder(), output=tmp_path / "out")
    assert calls(resumed, "shared-2") == calls(result, "shared-2")
    assert by_name(resumed)["shared-2"].remembers


def test_warm_up_prompts_teach_before_each_repeat_and_are_not_measured(result, result_of):
    warm = result_of(WARM)
    assert len(set(calls(warm, "shared-2"))) == 1
    assert calls(warm, "shared-2")[0] < calls(result, "shared-2")[0]
    assert calls(warm, "echo-2") == calls(result, "echo-2")
    for name in ("shared-2", "echo-2"):
        (one, other) = (by_name(this)[name] for this in (warm, result))
        assert one.tokens == other.tokens
    runs = list(by_name(warm).values())
    assert any("shared-2" in note and note.endswith(": 2.") for note in results_table(runs).notes)
    assert warm.provenance["tasks"][0]["warmup"]["count"] == 2
    assert "warmup" not in result.provenance["tasks"][0]


def test_what_a_process_or_worker_is_told_has_the_warm_up_prompts(study):
    task = study().tasks[0]
    warmup = [(["b", [3]], [1, 2])]
    job = RunJob(None, task.runs[1], task.sampling, task.generation, [(["a"], [0])], 1, Path(), warmup=warmup)
    assert ForkingPickler.loads(ForkingPickler.dumps(job)).warmup == warmup


def test_a_drafter_is_told_whose_prompts_a_study_decodes(study, tmp_path, monkeypatch):
    seen, opened = [], DeterministicDrafter.open

    def noting(self, session):
        seen.append([one.get("user") for one in session.metadata])
        return opened(self, session)

    monkeypatch.setattr(DeterministicDrafter, "open", noting)
    rows = ({"prompt": "a b c", "user": "ann"}, {"prompt": "d e", "user": "bob"}, {"prompt": "f"})
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = STUDY.replace("[a b c, d e, f]", "{{file: p.jsonl}}").split("  - {{drafter: shared")[0]
    run_study(study(text, "batch_size=2", "repeats=1"), Recorder())
    assert seen[-3:] == [["ann", "bob"], [None], ["ann"]], "the last is that of the trace"


def test_warm_up_prompts_that_are_measured_are_an_error(study):
    with pytest.raises(ConfigError, match="warmup_prompts: 1 of 2 are measured, too"):
        study(WARM.replace("a b d", "d e"))


def test_causes_that_are_legitimate_are_not_blamed(result):
    (task,) = result.study.tasks
    (run,) = (one for one in task.runs if one.name == "sly-2")
    repeats, baseline = result.of_run(task, "sly-2"), result.of_run(task, "baseline")
    assert uneven_calls(run, repeats, baseline, greedy=True)
    # A controller that looks at times.
    varying = {n: replace(one, varies=True) for n, one in repeats.items()}
    assert not uneven_calls(run, varying, baseline, greedy=True)
    # Rounding: other tokens, and so other counts.
    other = {n: replace(one, outputs=(*one.outputs[:-1], one.outputs[n - 1])) for n, one in repeats.items()}
    assert not uneven_calls(run, other, baseline, greedy=True)
    assert uneven_calls(run, other, baseline, greedy=False)
    # Above temperature 0, the baseline differs, too.
    shaky = {n: replace(one, outputs=one.outputs[n - 1 :]) for n, one in baseline.items()}
    assert not uneven_calls(run, other, shaky, greedy=False)
    # On another machine.
    moved = {n: replace(one, device=str(n)) for n, one in repeats.items()}
    assert not uneven_calls(run, moved, baseline, greedy=True)
