"""vLLM itself decodes with an exported drafter. It has no wheel for machines without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.models import model_folder

pytest.importorskip("vllm", reason="vLLM is not installed: its wheel brings CUDA")


def test_vllm_gives_its_own_tokens_with_drafts(tmp_path, monkeypatch):
    from vllm import LLM, SamplingParams

    done = CliRunner().invoke(app, ["export", str(tmp_path), "--to", "vllm", "--drafter", "prompt-copy"])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config = {"method": "custom_class", "model": "exported_prompt_copy.Proposer", "num_speculative_tokens": 4}
    prompts = ["import os\n", "def main():\n", Path(__file__).read_text()[:200]]
    greedy = SamplingParams(temperature=0, max_tokens=48)
    texts = []
    for more in ({}, {"speculative_config": config}):
        model = LLM(str(model_folder("builtin:target")), dtype="float32", enforce_eager=True, **more)
        texts.append([output.outputs[0].token_ids for output in model.generate(prompts, greedy)])
        del model
    assert texts[0] == texts[1]
