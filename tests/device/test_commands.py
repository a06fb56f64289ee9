"""Commands on a GPU: they record, replay, measure and compare the texts of the CPU, and train."""

import json

import pytest

from specdec_core.offline.record.store import read_record
from tests.commands import run_command
from tests.model_folder import model_folder  # noqa: F401


@pytest.fixture
def specdec(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')

    def run(*arguments):
        result = run_command(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def study(model_folder, tmp_path):  # noqa: F811
    def written(device):
        path = tmp_path / f"{device}.yaml"
        settings = {
            "target": {"model": str(model_folder), "device": device, "dtype": "float32"},
            "prompts": ["a b c", "d e", "f g h"],
            "generation": {"max_new_tokens": 8, "seed": 7},
            "sampling": {"temperature": 1},
            "runs": [{"drafter": "prompt-copy", "gamma": 2}, {"drafter": "random", "gamma": 2}],
        }
        path.write_text(json.dumps(settings))
        return path

    return written


def test_records_are_those_of_the_cpu_and_are_replayed(specdec, study, device):
    for where in ("cpu", device):
        specdec("record", study(where), "--output", f"record-{where}", "--hidden", "--keep-top", "4", "--quiet")
    mine, theirs = (read_record(f"record-{where}").parts[0] for where in (device, "cpu"))
    assert [text.tokens.tolist() for text in mine] == [text.tokens.tolist() for text in theirs]
    assert "prompt-copy" in specdec("replay", f"record-{device}", "prompt-copy", "--gamma", "2")


@pytest.mark.parametrize("trainer", ["heads", "eagle3", "transformer", "parallel", "early-exit"])
def test_each_trainer_takes_its_steps(specdec, model_folder, device, tmp_path, trainer):  # noqa: F811
    options = ("--samples", "400", "--held-out", "64", "--length", "32", "--batch-tokens", "128", "--steps", "2")
    if trainer == "eagle3":
        options += ("--aux-layers", "0", "--aux-layers", "2")
    output = tmp_path / ("made.safetensors" if trainer in ("heads", "early-exit") else "made")
    specdec("train", trainer, "--target", model_folder, "--device", device, *options, "--output", output)
    assert output.exists()
