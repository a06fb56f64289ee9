"""The speculators package itself, in an environment of its own, against the eagle3 drafter and its trainer."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.trainer import Eagle3Trainer
from specdec_drafters.settings import Eagle3TrainerConfig
from tests.drafters.speculator_heads import check_logits, target_for
from tests.drafters.speculators_package import CASES, DATA, package_logits
from tests.drafters.training.support import Recorder

pytestmark = pytest.mark.speculators


@pytest.mark.parametrize("case", CASES["eagle3"])
def test_the_committed_logits_are_those_of_the_package(case, tmp_path):
    reference = load_file(DATA / "eagle3" / case / "reference.safetensors")["logits"]
    torch.testing.assert_close(package_logits(DATA / "eagle3" / case, tmp_path), reference, atol=1e-5, rtol=1e-5)


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
