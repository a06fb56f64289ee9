"""`specdec compare --ray`: the results of a local run, also when a worker is killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.commands import run_command
from tests.model_folder import model_folder  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]

STUDY = """\
target: {folder}
generation: {{max_new_tokens: 40, ignore_eos: true}}
repeats: 4
tasks:
  - {{name: short, prompts: [a b c, d e f, g h]}}
  - {{name: long, prompts: [a b c a b c a b c, a a a a], sampling: {{temperature: 0}}}}
runs:
  - {{drafter: prompt-copy, gamma: 2}}
  - {{name: chosen, drafter: random, gamma: 3, lenience: 0.5}}
"""
_COMMAND = Path(__file__).with_name("command.py")


@pytest.fixture
def study(tmp_path, model_folder) -> Path:  # noqa: F811
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(folder=model_folder))
    return path


def _run(study: Path, output: Path, *options: str, code: int = 0) -> str:
    torch.set_num_threads(1)  # of a job, too: two run side by side
    result = run_command("compare", str(study), "-o", str(output), "-q", *options)
    assert result.exit_code == code, result.output
    return result.stderr


def _start(study: Path, output: Path, *options: str, address: str = "") -> subprocess.Popen[str]:
    root = str(_COMMAND.parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, _COMMAND, "compare", study, "-o", output, "-q", *options],
        env={**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": address, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str], code: int = 0) -> str:
    _, errors = process.communicate(timeout=280)
    assert process.returncode == code, errors
    return errors


def _without_times(value: object) -> object:
    """Drop what differs from one run to the next on one machine: all that a clock measured."""
    timed = ("seconds", "times", "per_second", "speedup", "cost", "time_shares")
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if not any(word in key for word in timed)}
        return {key: _without_times(part) for key, part in kept.items() if key not in _CLOCKED}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


_CLOCKED = {"c", "crc32", "gamma_best", "diagnosis", "begin", "draft", "verify"}


def _journal(folder: Path) -> list[object]:
    return [_without_times(json.loads(line)) for line in (folder / "repeats.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def local(tmp_path_factory, model_folder) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("local")
    (folder / "study.yaml").write_text(STUDY.format(folder=model_folder))
    _run(folder / "study.yaml", folder / "out")
    return folder / "out"


def test_the_results_are_those_of_a_local_run(two_workers, local, study, tmp_path):
    _run(study, tmp_path / "out", "--ray", two_workers)
    assert (tmp_path / "out" / "outputs.jsonl").read_bytes() == (local / "outputs.jsonl").read_bytes()
    assert _journal(tmp_path / "out") == _journal(local)
    results = [
        [_without_times(json.loads(line)) for line in (folder / "results.jsonl").read_text().splitlines()]
        for folder in (local, tmp_path / "out")
    ]
    assert results[0] == results[1]
    assert {"alpha", "block_efficiency", "tokens", "target_calls"} <= set(results[0][1])


def test_a_worker_that_is_killed_costs_nothing(two_workers, local, study, tmp_path):
    process = _start(study, tmp_path / "out", "--ray", two_workers)
    journal = tmp_path / "out" / "repeats.jsonl"
    while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") > 4):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()
    (worker,) = _workers()
    os.kill(worker, signal.SIGKILL)
    _finish(process)
    assert journal.read_text().count("\n") == 1 + 2 * 3 * 4
    assert _journal(tmp_path / "out") == _journal(local)


def test_runs_that_are_not_timed_decode_side_by_side(two_workers, study, tmp_path):
    untimed = ("--set", "timing=false")
    _run(study, tmp_path / "here", *untimed)
    _run(study, tmp_path / "there", "--ray", two_workers, *untimed)
    for name in ("results.jsonl", "outputs.jsonl", "repeats.jsonl"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def _workers() -> list[int]:
    """Return the processes that time runs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_text()
        except OSError:
            continue
        found += [int(process.name)] * title.startswith("ray::_Worker")
    return found


def test_a_stopped_study_resumes_on_another_machine(two_workers, local, study, tmp_path):
    process = _start(study, tmp_path / "out", "--ray", address=two_workers)
    journal = tmp_path / "out" / "repeats.jsonl"
    while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") > 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert "stopped" in _finish(process, 128 + signal.SIGTERM)
    _run(study, tmp_path / "out")
    assert _journal(tmp_path / "out") == _journal(local)
