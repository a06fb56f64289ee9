"""The parts of tuning one by one: candidates without a study, the choice among timed runs, and what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.measurement.measurement_file import read_measurement, write_measurement
from specdec_core.offline.candidate_runs import default_study
from specdec_core.offline.record import PartHeader, Record, RecordHeader
from specdec_core.offline.tune import RaceSettings, TunedTask, Tuning
from specdec_core.offline.tune.costs import read_costs
from specdec_core.offline.tune.finalists import choose, expected, finals
from specdec_core.offline.tune.race import Race
from specdec_core.offline.tune.winning_study import winning_study, write_study
from specdec_core.study import load_study
from specdec_core.study.config.study import drafter_key
from tests.offline.tune.support import STUDY, echo, write_times
from tests.study.summaries import UNMEASURED, baseline, run, timed


class Part(list):
    """A part of a record that holds given texts."""

    def __init__(self, prompts, task=None, texts=()):
        super().__init__(texts)
        self.header = PartHeader(
            task=task,
            sampling=SamplingSettings(temperature=0.0),
            generation=GenerationSettings(max_new_tokens=16, seed=3),
            prompts={"settings": prompts, "count": len(texts)},
            texts=len(texts),
        )


def record_of(model, *parts, named=(), **header):
    whole = {"fingerprint": None, "tokenizer": None, "vocab_size": 9, "eos_ids": (), **header}
    header = RecordHeader(target={"model": model}, parts=[part.header for part in parts], **whole)
    return Record(Path("record"), header, parts, frozenset(named))


def test_every_drafter_that_ships_is_a_candidate_for_the_built_in_target():
    study, left_out = default_study(record_of("builtin:target", Part({"builtin": "heldout"})))
    # No drafter with another tokenizer ships, and no such head.
    assert left_out == {
        "dflash": 'missing key \'model\'; write {"name": "dflash", "model": ...}.',
        "mtp": 'missing key \'model\'; write {"name": "mtp", "model": ...}.',
        "translated": 'missing key \'drafter\'; write {"name": "translated", "drafter": ...}.',
    }
    drafters = {one.labels.drafter.partition("(")[0] for one in study.runs[1:]}
    assert drafters == {
        "chain",
        "datastore",
        "eagle3",
        "early-exit",
        "heads",
        "hierarchical",
        "ngram",
        "parallel",
        "prompt-copy",
        "quantized",
        "random",
        "suffix",
        "transformer",
    }
    assert [one.labels.gamma for one in study.runs if one.labels.drafter == "random"] == list(range(1, 9))
    assert study.tasks[0].sampling.greedy
    assert study.tasks[0].generation.seed == 3


def test_drafters_that_need_settings_are_left_out_with_the_reason(tmp_path):
    text = SimpleNamespace(number=0, prompt=(3, 1))
    other = SimpleNamespace(number=1, prompt=(2,))
    part = Part(None, texts=[other, text, text])
    study, left_out = default_study(record_of("somebody/large", part, named=["somebody/large"]), registry=None)
    assert {one.labels.drafter for one in study.runs[1:]} == {
        "early-exit",
        "prompt-copy",
        "quantized",
        "random",
        "suffix",
    }
    assert "missing key 'model'" in left_out["transformer"]
    study, left_out = default_study(record_of("somebody/large", part, source="vllm"), registry=None)
    assert {one.labels.drafter for one in study.runs[1:]} == {"prompt-copy", "random", "suffix"}
    assert "made of the target's weights, which an imported record does not name" in left_out["quantized"]
    # An import has no settings of prompts: they are its token ids, in order.
    assert [prompt.tokens for prompt in study.tasks[0].prompts] == [(3, 1), (2,)]


def test_drafters_that_work_on_a_target_that_nobody_named_are_left_out(tmp_path):
    part = Part(None, texts=[SimpleNamespace(number=0, prompt=(3, 1))])
    study, left_out = default_study(record_of("somebody/large", part), registry=None)
    assert {one.labels.drafter for one in study.runs[1:]} == {"prompt-copy", "random", "suffix"}
    assert "--target somebody/large" in left_out["early-exit"]


def test_prompts_of_a_dataset_that_only_a_record_names_are_its_token_ids():
    """The dataset is not even looked for."""
    part = Part({"dataset": "evil/data"}, texts=[SimpleNamespace(number=0, prompt=(3, 1))])
    study, _ = default_study(record_of("builtin:target", part))
    assert [prompt.tokens for prompt in study.tasks[0].prompts] == [(3, 1)]


def test_settings_of_prompts_that_no_study_could_hold_are_named():
    for settings in ({"limit": 0, "builtin": "heldout"}, {"builtin": "heldout", "other": 1}, {}):
        part = Part(settings, texts=[SimpleNamespace(number=0, prompt=(3, 1))])
        with pytest.raises(ConfigError, match=r"record\.json: .*damaged: parts\.0\.prompts\.settings"):
            default_study(record_of("builtin:target", part))


def test_each_part_of_a_record_becomes_a_task():
    parts = [Part({"builtin": "heldout"}, task) for task in ("cold", "warm")]
    study, _ = default_study(record_of("builtin:target", *parts), settings=["generation.seed=9"])
    assert [task.name for task in study.tasks] == ["cold", "warm"]


def test_the_fastest_of_the_timed_runs_wins_and_ties_are_told():
    rows = [baseline(), timed("a", 1.4, 1.5, 1.6), timed("b", 1.5, 1.6, 1.7), timed("c", 1.0, 1.1, 1.2)]
    found = choose(rows, ["a", "b", "c"])
    assert (found.run, found.tied) == ("b", ("a",))
    assert "cannot be told apart" in found.sure
    alone = choose([baseline(), timed("a", 1.4, 1.5, 1.6), timed("c", 1.0, 1.1, 1.2)], ["c", "a"])
    assert (alone.run, alone.tied) == ("a", ())
    assert "the fastest run is a" in alone.sure


@pytest.mark.parametrize(("speedups", "pays"), [((1.4, 1.5, 1.6), True), ((0.7, 0.8, 0.9), False)])
def test_a_winner_that_is_slower_than_the_baseline_is_told(speedups, pays):
    found = choose([baseline(), timed("a", *speedups)], ["a"])
    assert (found.run, found.pays) == ("a", pays)
    race = Race((), ("a",), (8,), 8, RaceSettings(), 0.01)
    tuned = TunedTask(None, race, 50.0, found)
    told = str(Tuning(None, "record", "machine", (tuned,), {}, {}, {}))
    assert ("no drafter at all is faster here" in told) is not pays


def test_a_run_that_failed_does_not_win():
    failed = run("b", **{**UNMEASURED, "error": "it broke"})
    found = choose([baseline(), timed("a", 1.1, 1.2, 1.3), failed], ["b", "a"])
    assert found.run == "a"
    assert "b failed: it broke." in found.sure
    none = choose([baseline(), failed], ["b"])
    assert none.run == "b"
    assert "expected to be fastest" in none.sure


def test_without_timing_the_expected_one_wins_and_says_so():
    found = expected(["a", "b", "c"])
    assert (found.run, found.tied) == ("a", ("b", "c"))
    assert "Nothing was timed live" in found.sure
    assert found.sure.endswith("cannot tell it from b and c.")


def test_the_finals_hold_the_finalists_and_fewer_prompts(study):
    loaded = study(STUDY)
    final = finals(loaded, {None: ("three", "echo-1")}, 3)
    assert [one.name for one in final.runs] == ["baseline", "echo-1", "three"]
    assert [one.name for one in final.tasks[0].runs] == ["baseline", "echo-1", "three"]
    assert final.tasks[0].prompts == loaded.tasks[0].prompts[:3]
    limited = study(STUDY.replace("prompts: [", "prompts: {{limit: 3, texts: [").replace("e f g]", "e f g]}}"))
    assert final.tasks[0].resolved()["prompts"] == limited.tasks[0].resolved()["prompts"]
    assert finals(loaded, {None: ("three",)}, None).tasks[0].prompts == loaded.tasks[0].prompts
    (task,) = loaded.tasks
    turns = tuple(replace(one, turn=1 + number % 2) for number, one in enumerate(task.prompts))
    whole = finals(replace(loaded, tasks=(replace(task, prompts=turns),)), {None: ("three",)}, 3).tasks[0]
    assert (len(whole.prompts), whole.prompts_config.limit) == (4, 2)


def test_times_are_found_by_the_settings_of_the_drafter(study, tmp_path):
    loaded = study(STUDY)
    drafts = {"x": (echo(2), (0.0, 0.1, 0.2)), "y": (echo(3), (0.0, 0.3, 0.6))}
    machine = read_costs(write_times(tmp_path / "here.json", drafts, (1.0, 2.0, 3.0), 0.5), loaded.runs[1:])
    first, last = (drafter_key(run.drafter, run.draft_sampling) for run in (loaded.runs[1], loaded.runs[-1]))
    assert machine.costs(first).draft == (0.0, 0.1, 0.2)
    assert machine.costs(last).draft == (0.0, 0.3, 0.6)
    assert (machine.name, machine.target.verify, machine.target.overhead) == ("here", (1.0, 2.0, 3.0), 0.5)
    only = read_costs(write_times(tmp_path / "one.json", {"x": drafts["x"]}, (1.0, 2.0, 3.0)), loaded.runs[1:])
    with pytest.raises(ConfigError, match="no times of this drafter"):
        only.costs(last)


def test_lengths_are_timed_by_the_drafters_that_produce_them(study, tmp_path):
    """The verification time of a length that one of them only interpolates is that of the other."""
    path = write_times(
        tmp_path / "times.json", {"x": (echo(2), (0.0, 0.1)), "y": (echo(3), (0.0, 0.1))}, (1.0, 2.0)
    )
    measurement = read_measurement(path)
    one, other = measurement.drafters
    right = one.seconds.model_copy(update={"timed": (0, 1)})
    wrong = other.seconds.model_copy(update={"verify": (1.2, 50.0), "timed": (0,)})
    drafters = one.model_copy(update={"seconds": right}), other.model_copy(update={"seconds": wrong})
    write_measurement(path, measurement.model_copy(update={"drafters": drafters}))
    target = read_costs(path, study(STUDY).runs[1:]).target
    assert target.verify == (pytest.approx(1.1), 2.0)
    assert target.noise == pytest.approx(0.1 / 1.1)


def test_own_sampling_settings_make_another_drafter(study):
    one = study(STUDY).runs[1]
    same = study(STUDY).runs[2]
    assert drafter_key(one.drafter, one.draft_sampling) == drafter_key(same.drafter, same.draft_sampling)
    assert drafter_key(one.drafter, one.draft_sampling) != drafter_key(
        one.drafter, SamplingSettings(temperature=0.5)
    )


def test_paths_lead_to_the_same_files_from_the_new_folder(study, tmp_path, model_folder):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(model_folder)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a b"}\n')
    (tmp_path / "echo").mkdir()  # the name of a plugin is no path
    text = STUDY.replace("{folder}", "models/tiny").replace("[a b c, d e,", "{{file: p.jsonl}} #")
    loaded = study(text)
    output = tmp_path / "results" / "best.yaml"
    write_study(output, winning_study(loaded, {None: "echo-2"}, output.parent), ["a " * 100, "b"])
    written = load_study(output)
    assert written.tasks[0].target.model == "../models/tiny"
    assert written.tasks[0].prompts == loaded.tasks[0].prompts
    assert written.runs[1].resolved() == loaded.runs[2].resolved()
    head = output.read_text().splitlines()
    assert all(len(line) < 115 for line in head)
    assert "# b" in head


def test_winners_of_several_tasks_name_their_tasks(study, tmp_path):
    tasks = "tasks: [{{name: cold, sampling: {{temperature: 0}}}}, {{name: warm}}, {{name: hot}}]\n"
    loaded = study(STUDY + tasks)
    data = winning_study(loaded, {"cold": "three", "warm": "echo-2", "hot": "echo-2"}, tmp_path)
    assert [(one["name"], one["tasks"]) for one in data["runs"]] == [
        ("three", ["cold"]),
        ("echo-2", ["warm", "hot"]),
    ]
    same = winning_study(loaded, dict.fromkeys(("cold", "warm", "hot"), "three"), tmp_path)
    assert [one.get("tasks") for one in same["runs"]] == [None]


def test_every_setting_of_every_example_survives_being_written(tmp_path):
    """The first run of each task of each example, written and read back."""
    seen = 0
    for path in sorted(Path("examples").glob("*.yaml")):
        loaded = load_study(path)
        winners = {task.name: task.runs[1].name for task in loaded.tasks}
        output = tmp_path / path.name
        write_study(output, winning_study(loaded, winners, output.parent), [])
        written = load_study(output)
        by_name = {task.name: task for task in written.tasks}
        for task in loaded.tasks:
            after = by_name[task.name]
            assert after.prompts == task.prompts, path
            assert after.sampling == task.sampling, path
            assert after.generation == task.generation, path
            assert [one.resolved() for one in after.runs] == [one.resolved() for one in task.runs[:2]], path
            seen += 1
    assert seen > 10
