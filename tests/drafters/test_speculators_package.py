"""The speculators package itself, in an environment of its own, against the drafters and the eagle3 trainer."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.trainer import Eagle3Trainer
from specdec_drafters.settings import Eagle3TrainerConfig
from tests.drafters.speculator_heads import CASES, DATA, check_logits, target_for
from tests.drafters.training.support import Recorder

pytestmark = pytest.mark.speculators


SCRIPT = Path(__file__).parent / "speculators_reference.py"


def package_logits(head, folder):
    """Run the package with the Python that has it; return its logits, as the script says."""
    python = os.environ.get("SPECULATORS_PYTHON")
    assert python, "SPECULATORS_PYTHON must name a Python that has the package; see the phase in .ci/run"
    output = folder / "logits.safetensors"
    # The package imports its own transformers, not that of this environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, SCRIPT, "run", head, output], check=True, env={**environment, "HF_HUB_OFFLINE": "1"})
    return load_file(output)["logits"]


@pytest.mark.parametrize("head", [f"{kind}/{case}" for kind, cases in CASES.items() for case in cases])
def test_the_committed_logits_are_those_of_the_package(head, tmp_path):
    reference = load_file(DATA / head / "reference.safetensors")["logits"]
    made = package_logits(DATA / head, tmp_path)
    torch.testing.assert_close(made, reference, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("draft_vocab", [24, None])
def test_the_package_opens_what_the_trainer_writes(draft_vocab, tmp_path):
    target = target_for()
    target.model.save_pretrained(tmp_path / "target")
    settings = {"samples": 600, "held_out": 100, "length": 24, "batch_tokens": 256, "steps": 3}
    config = Eagle3TrainerConfig(
        target=str(tmp_path / "target"),
        output=tmp_path / "head",
        aux_layers=(0, 2, 3),
        draft_vocab=draft_vocab,
        learning_rate=1e-2,
        dtype="float32",
        saved_as="float32",
        **settings,
    )
    Eagle3Trainer(config).train(Recorder())
    generator = torch.Generator().manual_seed(1)
    size = 3 * target.features.hidden_size
    given = {
        "hidden_states": torch.randn(1, 9, size, generator=generator),
        "input_ids": torch.randint(0, target.vocab_size, (1, 9), generator=generator),
    }
    save_file(given, tmp_path / "head" / "inputs.safetensors")
    head, layers = read_eagle3(str(tmp_path / "head"), target.info())
    assert layers == (0, 2, 3)
    check_logits(head, given, package_logits(tmp_path / "head", tmp_path), head.token_ids)
