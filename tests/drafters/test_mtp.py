"""The mtp drafter: the layer of the speculators package, and which checkpoints it takes.

How it drafts, commits and rolls back is tested in `test_eagle3.py`, with the session that both have.
"""

import pytest
import torch
from safetensors.torch import load_file

from specdec_core.interface import ModelError
from specdec_drafters.mtp import read_mtp
from tests.drafters.speculator_heads import CASES, DATA, V, changed, check_logits, target_for

HEADS = DATA / "mtp"


@pytest.mark.parametrize("case", CASES["mtp"])
def test_the_logits_are_those_of_the_speculators_package(case):
    given, reference = (load_file(HEADS / case / f"{name}.safetensors") for name in ("inputs", "reference"))
    target = target_for("qwen3")
    with torch.no_grad():
        target.model.get_input_embeddings().weight.copy_(given["embed_tokens"])
        target.model.get_output_embeddings().weight.copy_(given["lm_head"])
    head, layers = read_mtp(str(HEADS / case), target.info())
    assert layers == (4,)
    check_logits(head, given, reference["logits"], torch.arange(V))


def test_the_embeddings_are_the_targets_own_memory():
    target = target_for()
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    head, _ = read_mtp(str(HEADS / "qwen3"), target.info())
    features = target.features
    assert head.embed_tokens.weight.data_ptr() == features.input_embeddings.data_ptr()
    assert head.lm_head.weight.data_ptr() == features.output_embeddings.data_ptr()
    assert all(weight.requires_grad for weight in target.model.parameters())
    assert not any(weight.requires_grad for weight in head.parameters())
    for name, weight in target.model.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer": {"model_type": "qwen2"}}, "layers of the model_type 'qwen2'. Supported: qwen3.$"),
        (
            {"layer": {"model_type": "qwen3_next"}},
            "'qwen3_next', of which only those of qwen3 are built",
        ),
        ({"layer": {"vocab_size": 50}}, "a vocabulary of size 50; this one's is 40"),
        ({"layer": {"num_hidden_layers": 5}}, "output of layer 5, the last of its target; this target has 4"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(tmp_path, changes, said):
    with pytest.raises(ModelError, match=said):
        read_mtp(changed(tmp_path / "head", "mtp/qwen3", **changes), target_for().info())


def test_embeddings_of_a_checkpoint_are_ignored_as_the_package_does(tmp_path):
    target = target_for()
    other = {f"{name}.weight": torch.zeros(3, 2) for name in ("embed_tokens", "lm_head", "verifier_lm_head")}
    head, _ = read_mtp(changed(tmp_path / "head", "mtp/qwen3", **other), target.info())
    assert torch.equal(head.embed_tokens.weight, target.features.input_embeddings)
