"""A target that two processes share decodes as one process does, and the processes cannot disagree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_model

pytestmark = pytest.mark.cluster

_SCRIPT = Path(__file__).with_name("on_ranks.py")
_TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def _run(*arguments: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
    root = str(_SCRIPT.parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stderr
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    tiny_model("llama", seed=1).save_pretrained(folder)
    tiny_model("llama", seed=1, sharpness=3.0).save_pretrained(f"{folder}-drafter")
    return folder


@pytest.fixture(scope="module")
def tokens_of(model, tmp_path_factory):
    """Return a function that decodes in one process or on two ranks, once; it returns the tokens and a folder."""
    done = {}

    def run(*launcher: str, noise: bool = False) -> tuple[dict[str, list[list[int]]], Path]:
        key = (launcher, noise)
        if key not in done:
            folder = tmp_path_factory.mktemp("output")
            _run(*launcher, _SCRIPT, model, folder, *(["--noise"] * noise))
            done[key] = json.loads((folder / "tokens.json").read_text()), folder
        return done[key]

    return run


def test_two_ranks_decode_what_one_process_does(tokens_of):
    one, two = tokens_of()[0], tokens_of(*_TORCHRUN)[0]
    alike = ("greedy", "beams", "kept")
    assert {name: two[name] for name in alike} == {name: one[name] for name in alike}


def test_every_rank_reads_the_same_tokens_whatever_its_own_logits_are(tokens_of):
    """Without the broadcast, rank 1 would draw other tokens, and the ranks would read different ones."""
    quiet, _ = tokens_of(*_TORCHRUN)
    noisy, folder = tokens_of(*_TORCHRUN, noise=True)
    assert noisy == quiet
    first, second = (json.loads((folder / f"read-{rank}.json").read_text()) for rank in (0, 1))
    assert len(first) > 30
    assert first == second


STUDY = """
target: {{model: {folder}, tensor_parallel: 2}}
prompts: {{tokens: [[3, 4, 5, 3, 4], [9, 8]]}}
sampling: {{temperature: 0}}
generation: {{max_new_tokens: 16}}
repeats: 1
runs:
  - {{name: own, drafter: {{name: transformer, model: {folder}-drafter}}, gamma: 2}}
"""


@pytest.fixture
def study(model, tmp_path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(folder=model))
    return path


def _compare(study: Path, output: Path, *launcher: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    command = (_SCRIPT.with_name("command.py"), "compare", study, "--output", output, "-q")
    return _run(*launcher, *command, fails=fails)


def test_a_study_is_run_and_printed_by_one_rank(model, study, tmp_path):
    shared = _compare(study, tmp_path / "shared", *_TORCHRUN)
    assert shared.stdout.count("Verdict") == 1
    study.write_text(study.read_text().replace(", tensor_parallel: 2", ""))
    _compare(study, tmp_path / "alone")
    outputs = [(tmp_path / name / "outputs.jsonl").read_text() for name in ("shared", "alone")]
    assert outputs[0] == outputs[1]


def test_what_cannot_be_shared_is_refused_with_the_reason(study, tmp_path):
    alone = _compare(study, tmp_path / "out", fails=True)
    assert "tensor_parallel: 2 needs 2 processes, but this is one process" in alone.stderr
    study.write_text(study.read_text().replace("tensor_parallel: 2", "tensor_parallel: 4"))
    two = _compare(study, tmp_path / "out", *_TORCHRUN, fails=True)
    assert "tensor_parallel: 4 needs 4 processes, but torchrun started 2" in two.stderr
    tiny_model("gpt2").save_pretrained(tmp_path / "unplanned")
    other = f"\ntarget: {{model: {tmp_path / 'unplanned'}, tensor_parallel: 2}}\n"
    study.write_text(other + study.read_text().split("\n", 2)[2])
    unplanned = _compare(study, tmp_path / "out", *_TORCHRUN, fails=True)
    assert "has no `tp_plan`" in unplanned.stderr
