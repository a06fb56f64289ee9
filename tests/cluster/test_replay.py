"""`specdec replay --ray` and `specdec record --ray`: the same bytes as on this process."""

import json
from pathlib import Path

import pytest
import torch

from tests.commands import run_command

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]

STUDY = """\
runs:
  - {drafter: prompt-copy, grid: {gamma: [2, 5]}}
  - name: confident
    drafter: {name: transformer, model: "builtin:drafter"}
    gamma: {name: confidence, threshold: 0.5}
  - {drafter: random, gamma: 3}
  - {name: lenient, drafter: prompt-copy, gamma: 2, lenience: 0.5}
"""


def _run(*arguments: object, code: int = 0) -> None:
    torch.set_num_threads(1)  # of a job, too: two run side by side
    result = run_command(*arguments, "-q")
    assert result.exit_code == code, result.output


RECORD = (
    "record",
    "--max-new-tokens",
    24,
    "--prompts",
    "{builtin: heldout, limit: 12}",
    "--samples",
    3,
    "--rows",
    4,
)


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "code"
    _run(*RECORD, "--output", folder)
    return folder


def test_a_replay_is_the_same_bytes(two_workers, record, tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    found = {}
    for name, options in {"here": (), "there": ("--ray", two_workers)}.items():
        _run("replay", record, tmp_path / "study.yaml", "-o", tmp_path / name, *options, code=2)
        found[name] = [(tmp_path / name / file).read_bytes() for file in ("results.jsonl", "repeats.jsonl")]
    assert found["here"] == found["there"]
    lines = [json.loads(line) for line in found["here"][0].splitlines()]
    assert len(lines) == 2 * 6
    assert sum(line["error"] is not None for line in lines) == 2, "lenience cannot be replayed"


def _files(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_record_is_the_same_bytes(two_workers, record, tmp_path):
    _run(*RECORD, "--output", tmp_path / "code", "--ray", two_workers)
    assert _files(tmp_path / "code") == _files(record)
    assert len(_files(record)) == 4, "a header, a lock, and the texts of two parts"


def test_hidden_states_and_times_come_from_the_workers(two_workers, tmp_path):
    options = ("--hidden", "--keep-top", 2, "--temperature", 1, "--prompts", "{builtin: heldout, limit: 4}")
    _run(*RECORD, *options, "--output", tmp_path / "here")
    _run(*RECORD, *options, "--timings", "--gamma", 2, "--output", tmp_path / "there", "--ray", two_workers)
    here, there = _files(tmp_path / "here"), _files(tmp_path / "there")
    timed = json.loads(there.pop("record.json"))
    assert len(timed.pop("times")["verify"]) == 3
    header = json.loads(here.pop("record.json"))
    assert header.pop("times") is None
    assert timed == header
    assert "features.safetensors" in here
    assert there == here
