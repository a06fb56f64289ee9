"""Constraints in a study: of all tasks or of one, in results, and refused where nothing knows of them."""

import importlib.util
import json

import llguidance
import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.constraint import Constraint
from specdec_core.offline.record.recording import record_study
from specdec_core.offline.replay.study_replay import check_replayable
from specdec_core.study import compare, load_study
from tests.offline.record.watcher import Watcher

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "adult": {"type": "boolean"}},
    "required": ["name", "adult"],
    "additionalProperties": False,
}
STUDY = {
    "target": "builtin:target",
    "prompts": ["person = ", "{"],
    "sampling": {"temperature": 0},
    "generation": {"max_new_tokens": 60},
    "constraint": {"json_schema": PERSON},
    "repeats": 1,
    "runs": [{"name": "forced", "drafter": "prompt-copy", "gamma": 0}, {"drafter": "prompt-copy", "gamma": 4}],
}


def problem_of(study, settings=()):
    with pytest.raises(ConfigError) as caught:
        load_study(study, settings)
    return str(caught.value)


def test_outputs_are_json_and_forced_tokens_save_passes_of_the_baseline(tmp_path):
    found = compare(STUDY, tmp_path, progress=False)
    plain, forced, copied = found.to_dicts()
    for line in (tmp_path / "outputs.jsonl").read_text(encoding="utf-8").splitlines():
        person = json.loads(json.loads(line)["text"])
        assert list(person) == ["name", "adult"]
    assert plain["forced"] == 0
    assert plain["target_calls"] == plain["tokens"]
    assert forced["forced"] >= 10
    assert forced["target_calls"] <= plain["target_calls"] - 10
    assert f"{forced['forced'] / forced['tokens']:.0%}" in forced["diagnosis"]
    assert copied["target_calls"] <= forced["target_calls"]
    assert [run["quality"]["exact"] for run in (forced, copied)] == [1, 1]
    assert forced["config"]["generation"]["constraint"]["json_schema"] == PERSON


def test_a_task_may_have_its_own_constraint_or_none():
    tasks = [
        {"name": "as-study"},
        {"name": "own", "constraint": {"regex": "a|b"}},
        {"name": "none", "constraint": None},
    ]
    study = load_study({**STUDY, "tasks": tasks})
    assert [task.generation.constraint for task in study.tasks] == [
        Constraint(json_schema=PERSON),
        Constraint(regex="a|b"),
        None,
    ]
    assert "constraint" not in study.tasks[2].resolved()["generation"]
    grid = {"constraint.fast_forward": [True, False]}
    varied = load_study({**STUDY, "tasks": [{"name": "t", "constraint": {"regex": "a|b"}, "grid": grid}]})
    assert [task.generation.constraint.fast_forward for task in varied.tasks] == [True, False]


def test_problems_name_the_key():
    assert "constraint: set exactly one of" in problem_of({**STUDY, "constraint": {}})
    assert "Invalid type: strin" in problem_of({**STUDY, "constraint": {"json_schema": {"type": "strin"}}})
    assert "'json_schema': Unsatisfiable" in problem_of(
        {**STUDY, "constraint": {"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}}}
    )
    assert "Did you mean 'regex'" in problem_of({**STUDY, "constraint": {"regx": "a"}})
    assert "unknown name" in problem_of({**STUDY, "constraint": {"grammar": "start: something"}})
    assert "says where a text ends" in problem_of(STUDY, ["generation.ignore_eos=true"])
    assert "takes no constraint" in problem_of(STUDY, ["generation.beams=2"])
    inside = {"generation": {"constraint": {"regex": "a"}}, "constraint": None}
    assert "stands beside 'generation'" in problem_of({**STUDY, **inside})


def test_white_space_is_optional_only_where_the_schema_says_so():
    compact = Constraint(json_schema=PERSON)
    free = Constraint(json_schema={**PERSON, "x-guidance": {"whitespace_flexible": True}})
    tokenizer = llguidance.LLTokenizer("byte")
    matchers = [llguidance.LLMatcher(tokenizer, one.compiled()) for one in (compact, free)]
    assert [matcher.validate_tokens(list(b'{ "name')) for matcher in matchers] == [1, 7]


def test_a_grammar_may_be_lark_or_gbnf():
    assert Constraint(grammar='start: "a" | "b"') != Constraint(grammar='root ::= "a" | "b"')


def test_without_llguidance_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("specdec_core.interface.constraint.find_spec", lambda name: None)
    assert "pip install 'specdec-core[grammar]'" in problem_of(STUDY)


@pytest.mark.parametrize("key", ["constraint", "min_new_tokens"])
def test_some_texts_are_neither_recorded_nor_replayed(tmp_path, key):
    least = {"constraint": None, "generation": {"min_new_tokens": 4}} if key == "min_new_tokens" else {}
    study = load_study({**STUDY, **least})
    with pytest.raises(ConfigError, match=f"{key} cannot be recorded"):
        record_study(study, tmp_path / "record", Watcher())
    with pytest.raises(ConfigError, match=f"{key}.* cannot be replayed"):
        check_replayable(generation=study.tasks[0].generation)
