"""Beams in a study: the baseline is beam search, too, and settings that make no sense are refused."""

import json

import pytest

from specdec_core.interface import ConfigError
from specdec_core.study import compare, load_study

STUDY = {
    "target": "builtin:target",
    "prompts": ["a b c", "d"],
    "sampling": {"temperature": 0},
    "generation": {"max_new_tokens": 8, "beams": 3, "num_return_sequences": 2},
    "repeats": 1,
    "batch_size": 2,
    "runs": [{"drafter": "random", "gamma": 2}],
}


def test_a_study_compares_with_beam_search(tmp_path, model_folder):
    drafter = {"name": "transformer", "model": str(model_folder)}
    runs = [{"drafter": drafter, "gamma": 2, "grid": {"draft_beams": [3, 6]}}]
    found = compare({**STUDY, "target": str(model_folder), "runs": runs}, tmp_path, progress=False)
    plain, narrow, wide = found.to_dicts()
    assert [plain["name"], narrow["name"], wide["name"]] == [
        "baseline",
        "transformer-2-draft_beams=3",
        "transformer-2-draft_beams=6",
    ]
    assert [one["beams"] for one in found.to_dicts()] == [3, 3, 3]
    assert [one["draft_beams"] for one in found.to_dicts()] == [None, 3, 6]
    assert plain["passes_saved"] == 0
    assert plain["block_efficiency"] == 1
    for one in (narrow, wide):
        assert one["status"] == "ok"
        assert one["quality"]["exact"] == 1
        assert one["passes_saved"] == 1 - one["target_calls"] / plain["target_calls"] > 0
    # A level of a wider draft takes longer to verify, so T(k) is that of drafts as wide as the run's own.
    assert narrow["verify_cost"][1:] != wide["verify_cost"][1:]
    assert "passes" in str(found)
    assert "saved" in str(found)
    assert "passes" in found.report.read_text(encoding="utf-8")
    stored = json.loads((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()[1])
    assert stored["config"]["generation"]["beams"] == 3
    assert stored["config"]["run"]["draft_beams"] == 3


@pytest.mark.parametrize(
    ("changes", "run", "message"),
    [
        ({"sampling": {}}, {}, "sampling.temperature: 1 was given, but beam search takes the best"),
        ({"generation": {"length_penalty": 2}}, {}, "generation.length_penalty: 2.0 was given, but it only has"),
        ({}, {"draft_beams": 2}, "draft_beams: 2 is less than the number of beams"),
        ({}, {"lenience": 0.5}, "lenience: beams are exact"),
        ({}, {"draft_sampling": {"temperature": 1}}, "draft_sampling: with beams the drafter takes its best"),
    ],
)
def test_settings_that_beams_do_not_go_together_with(changes, run, message):
    runs = [{"drafter": "random", "gamma": 2, **run}]
    with pytest.raises(ConfigError, match=message):
        load_study({**STUDY, **changes, "runs": runs})


def test_tasks_may_differ_in_their_beams():
    tasks = [{"name": "beams", "grid": {"generation.beams": [2, 4]}}, {"name": "greedy"}]
    wide = {"drafter": "random", "gamma": 2, "draft_beams": 2, "tasks": ["greedy"]}
    runs = [wide, {"drafter": "random", "gamma": 2}]
    study = {**STUDY, "generation": {"max_new_tokens": 8}, "tasks": tasks, "runs": runs}
    with pytest.raises(ConfigError, match="in task 'greedy': draft_beams: 2 was given, but only with beams"):
        load_study(study)
    study["runs"] = [{**runs[0], "tasks": ["beams-*=2"]}, runs[1]]
    found = load_study(study)
    assert [task.generation.beams for task in found.tasks] == [2, 4, 1]
