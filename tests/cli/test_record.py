"""`specdec record` on a tiny model."""

import json

import pytest

from specdec_core.offline.record.store import read_record
from tests.commands import run_command

STUDY = """\
target: {folder}
prompts: [a b c, d e, f g h]
generation: {{max_new_tokens: 12, seed: 7}}
tasks:
  - {{name: greedy, sampling: {{temperature: 0}}}}
  - {{name: sampled, sampling: {{top_k: 4}}}}
runs:
  - {{drafter: random, gamma: 2}}
"""
BRIEF = ("--prompts", "prompts.jsonl", "--max-new-tokens", "6")


@pytest.fixture
def here(tmp_path, monkeypatch, model_folder):
    (tmp_path / "study.yaml").write_text(STUDY.format(folder=model_folder))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def record(here):
    def run(*arguments):
        return run_command("record", *arguments)

    return run


@pytest.fixture
def by_options(record, model_folder):
    def run(*arguments):
        return record("--target", model_folder, *BRIEF, *arguments)

    return run


def test_temperatures_become_parts(by_options):
    result = by_options("--output", "r", "--samples", "3", "--top-p", "0.9", "--keep-top", "2", "--hidden")
    assert result.exit_code == 0, result.output
    found = read_record("r")
    assert [part.header.task for part in found.parts] == ["temperature-0", "temperature-1"]
    assert [len(part) for part in found.parts] == [2, 6]
    assert [part.header.sampling.top_p for part in found.parts] == [0.9, 0.9]
    assert (found.header.top_k, found.header.hidden_size) == (2, 32)
    tokens = sum(len(text.tokens) for text in found.parts[1])
    assert f"temperature-1: 6 texts of 2 prompts, {tokens} tokens, temperature 1" in result.stdout
    assert "written: r (" in result.stdout
    assert "specdec replay r DRAFTER" in result.stdout
    assert "recording" in result.stderr


def test_a_study_is_recorded_task_by_task(record, here):
    result = record("study.yaml", "-o", "r", "--set", "generation.max_new_tokens=4", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = read_record("r")
    assert [part.header.task for part in found.parts] == ["greedy", "sampled"]
    assert {part.header.generation.max_new_tokens for part in found.parts} == {4}
    assert "specdec replay r study.yaml" in result.stdout
    only = record("study.yaml", "-o", "one", "--task", "sampled", "-q")
    assert only.exit_code == 0, only.output
    assert [part.header.task for part in read_record("one").parts] == ["sampled"]


def test_times_are_added_to_what_is_there(by_options):
    what = ("--output", "r", "--temperature", "1")
    assert by_options(*what).exit_code == 0
    texts = [text.tokens.tolist() for text in read_record("r").parts[0]]
    result = by_options(*what, "--timings", "--gamma", "2")
    assert result.exit_code == 0, result.output
    found = read_record("r")
    assert len(found.header.times.verify) == 3
    assert [text.tokens.tolist() for text in found.parts[0]] == texts
    assert "T(k) of cpu" in result.stdout


def test_a_log_is_imported(record, model_folder, here):
    (here / "log.jsonl").write_text(json.dumps({"prompt": [0, 1], "tokens": [3, 4], "logprobs": [-1, -2]}))
    result = record("--import", "log.jsonl", "--target", model_folder, "--output", "r", "--temperature", "0.5")
    assert result.exit_code == 0, result.output
    (part,) = read_record("r").parts
    assert part.header.sampling.temperature == 0.5
    assert [(text.prompt, text.tokens.tolist()) for text in part] == [((0, 1), [3, 4])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--output: name the folder that receives the record"),
        (("study.yaml", "-o", "r", "--temperature", "0"), "--temperature: the study sets this"),
        (("study.yaml", "-o", "r", "--task", "greddy"), "unknown task 'greddy'. Did you mean 'greedy'?"),
        (("-o", "r", "--set", "x=1"), "--set: requires a study"),
        (("-o", "r", "--gamma", "3"), "--gamma: requires --timings"),
        (("-o", "r", "--hidden-dtype", "float16"), "--hidden-dtype: requires --hidden"),
        (("-o", "."), "other things in it"),
        (("-o", "r", "--import", "x.jsonl"), "--import: say the one --temperature"),
        (("-o", "r", "--import", "x.jsonl", "--temperature", "1"), "x.jsonl: the file does not exist"),
    ],
)
def test_what_cannot_be_recorded_is_said(record, arguments, message):
    result = record(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
