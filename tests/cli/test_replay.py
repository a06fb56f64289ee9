"""`specdec replay` and `specdec compare --record`: what they print, write and refuse."""

import json

import pytest

from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.study import load_study
from tests.commands import run_command
from tests.offline.replay.studies import study_of
from tests.study.toy_study import Recorder


@pytest.fixture(scope="module")
def record(model_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "record"
    record_study(load_study(study_of(model_folder)), path, Recorder(), RecordOptions(gamma=2, timings=2))
    return path


@pytest.fixture
def specdec(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")

    def run(*arguments, code=0):
        result = run_command(*arguments)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def study(model_folder, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study_of(model_folder, {"drafter": "prompt-copy", "grid": {"gamma": [1, 2]}})))
    return path


def lines(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_drafter_is_replayed_at_several_gammas(specdec, record, tmp_path):
    result = specdec("replay", record, "prompt-copy", "--gamma", "1-2", "--output", "out", "--wide")
    for task in ("greedy", "sampled"):
        assert task in result.stdout.splitlines()
    assert result.stdout.count("prompt-copy-2  prompt-copy") == 2
    assert f"Replayed on {record}: no target ran; speeds are expected on cpu" in " ".join(result.stdout.split())
    assert "expected here" not in result.stdout
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"results.jsonl", "summary.csv", "outputs.jsonl", "report.html", "repeats.jsonl"} <= files
    found = lines(tmp_path / "out")
    assert [line["name"] for line in found[:3]] == ["baseline", "prompt-copy-1", "prompt-copy-2"]
    assert {line["replayed"]["record"] for line in found} == {str(record)}
    texts = [json.loads(line) for line in (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()]
    assert {line["run"] for line in texts} == {"baseline"}
    assert all(line["text"] for line in texts)


def test_without_drafters_those_that_need_no_settings_are_replayed(specdec, record):
    result = specdec("replay", record, "--gamma", "1")
    assert "prompt-copy-1" in result.stdout
    assert "random-1" in result.stdout
    said = " ".join(result.stderr.split())
    assert "left out: chain: missing key 'drafters'" in said
    assert "left out: early-exit: it works on the target" in said


def test_a_study_is_replayed_by_either_command(specdec, record, study, tmp_path):
    one = specdec("replay", record, study, "--output", "one", "--set", "runs.0.grid.gamma=[2]")
    two = specdec("compare", study, "--record", record, "--output", "two", "--set", "runs.0.grid.gamma=[2]")
    rows = [[{**line, "config": None} for line in lines(tmp_path / name)] for name in ("one", "two")]
    measured = ("speed", "seconds", "_cost", "time_shares", "tokens_per_second", "c")  # the drafter is timed here
    for first, second in zip(*rows, strict=True):
        for key in first:
            if not any(part in key for part in measured) and key not in ("diagnosis", "gamma_best", "replayed"):
                assert first[key] == second[key], key
    assert [row["name"] for row in rows[0]] == ["baseline", "prompt-copy-2"] * 2
    assert "no target ran" in " ".join(one.stdout.split())
    assert "no target ran" in " ".join(two.stdout.split())


def test_what_was_measured_elsewhere_gives_the_speeds(specdec, record, study, tmp_path):
    measure = ("--timings", "3", "--gamma", "2")
    specdec("measure", study, "--task", "sampled", *measure, "--output", "one.json", "--quiet")
    (tmp_path / "two.json").write_bytes((tmp_path / "one.json").read_bytes())
    machines = ("--machine", "one.json", "--machine", "two.json")
    specdec("compare", study, "--record", record, *machines, "--output", "out", "--quiet")
    found = lines(tmp_path / "out")
    tasks = ["greedy on one", "greedy on two", "sampled on one", "sampled on two"]
    assert list(dict.fromkeys(line["task"] for line in found)) == tasks
    assert all(line["speedup"] > 0 for line in found)
    own = {line["replayed"]["machine"] for line in found if line["task"].endswith("two")}
    assert own == {"two"}
    other = json.loads((tmp_path / "one.json").read_text()) | {"target": "another"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    said = specdec("compare", study, "--record", record, "--machine", "other.json", "--quiet").stderr
    assert "other.json: speeds are those of another, and the texts are those of" in said


def test_a_run_that_cannot_be_replayed_ends_with_2_after_the_others(specdec, record, study):
    lenient = ("--set", "runs.0.lenience=0.5", "--quiet")
    result = specdec("compare", study, "--record", record, *lenient, code=2)
    assert "prompt-copy-1-lenience=0.5 failed: lenience below 1 cannot be replayed" in " ".join(
        result.stderr.split()
    )
    assert "baseline" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "{record}", "study.yaml", "prompt-copy"], "study.yaml is a study, which names its drafters"),
        (["replay", "prompt-copy", "{record}"], "`specdec replay {record} prompt-copy`"),
        (["replay", "{record}", "nobody"], "nobody"),
        (["replay", "nowhere", "prompt-copy"], "nowhere: no such folder"),
        (["replay", "{record}", "prompt-copy", "--machine", "nothing.json"], "nothing.json"),
        (["compare", "study.yaml", "--machine", "one.json"], "--machine: a study that runs is timed here"),
        (
            ["compare", "study.yaml", "--record", "{record}", "--set", "tasks.greedy.sampling.top_k=2"],
            "greedy: {record} has no texts with these settings",
        ),
    ],
)
def test_what_is_refused(specdec, record, study, arguments, said):
    result = specdec(*(text.format(record=record) for text in arguments), code=2)
    assert said.format(record=record) in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
