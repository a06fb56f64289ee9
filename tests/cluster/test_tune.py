"""`specdec tune --ray`: the race of a local tuning, and live timings by one worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from specdec_core.cli.main import app

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]

STUDY = """\
target: builtin:target
prompts: {builtin: heldout, limit: 3}
generation: {max_new_tokens: 8}
sampling: {temperature: 0}
repeats: 1
runs:
  - {drafter: prompt-copy, grid: {gamma: [1, 2]}}
  - {name: model, drafter: {name: transformer, model: "builtin:drafter"}, gamma: 2}
"""


def _tune(study: Path, output: Path, *options: str) -> dict[str, Any]:
    torch.set_num_threads(1)  # of a job, too: two run side by side
    result = CliRunner().invoke(app, ["tune", str(study), "-o", str(output), "-q", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads((output.with_name("best-tune") / "tune.json").read_text())
    return found


def test_a_tuning_runs_on_a_cluster(two_workers, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    found = _tune(study, tmp_path / "there" / "best.yaml", "--ray", two_workers, "--live-prompts", "1")
    candidates = _raced(found)
    assert {one["name"] for one in candidates} == {"prompt-copy-1", "prompt-copy-2", "model"}
    assert (tmp_path / "there" / "best.yaml").read_text()
    # With the same times of steps, the race is the same one.
    folder = tmp_path / "here" / "best-tune"
    folder.mkdir(parents=True)
    measured = (tmp_path / "there" / "best-tune" / "measured-0.json").read_bytes()
    (folder / "measured-0.json").write_bytes(measured)
    alone = _tune(study, tmp_path / "here" / "best.yaml", "--no-confirm")
    assert _raced(alone) == candidates


def _raced(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the race says of each candidate, without its live timing."""
    (task,) = found["tasks"]
    return [{key: value for key, value in one.items() if key != "live"} for one in task["candidates"]]
