"""The eagle3 drafter with heads in the format of EAGLE's authors, which vLLM loads too."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_core.interface import ModelError
from specdec_drafters.eagle3.checkpoint import export_eagle3, read_eagle3
from tests.drafters.speculator_heads import DATA, V, target_for

LAYERS = "eagle_aux_hidden_state_layer_ids"


def native(folder, case, change=None, **keys):
    """Write a head of the speculators package in the other format; return the folder's name."""
    config = json.loads((DATA / case / "config.json").read_text())
    flat = {
        **{key: value for key, value in config["transformer_layer_config"].items() if key != "rope_parameters"},
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": config["eagle_aux_hidden_state_layer_ids"],
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        **keys,
    }
    tensors = load_file(DATA / case / "model.safetensors")
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    if "mask_hidden" in tensors:
        tensors["mask_hidden"] = tensors["mask_hidden"].view(1, -1)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({key: value for key, value in flat.items() if value != "gone"}))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def check_same(given, case):
    """Compare a head with the one of the speculators package."""
    (head, layers), (expected, expected_layers) = (
        read_eagle3(model, target_for().info()) for model in (given, str(DATA / case))
    )
    assert layers == expected_layers
    assert head.shape.mask_token_id == expected.shape.mask_token_id
    own, other = head.state_dict(), expected.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert torch.equal(head.rotary_emb.inv_freq, expected.rotary_emb.inv_freq)


def test_a_head_is_that_of_the_speculators_package(tmp_path):
    check_same(native(tmp_path / "head", "eagle3/llama"), "eagle3/llama")


@pytest.mark.parametrize("key", ["mask_token_id", "pard_token", "ptd_token_id"])
def test_a_head_for_drafts_in_one_pass_names_its_mask_token_by_any_key_that_vllm_reads(tmp_path, key):
    check_same(native(tmp_path / "head", "peagle/llama", **{key: V - 1}), "peagle/llama")


@pytest.mark.parametrize(
    ("top", "nested", "expected"),
    [
        ([], [0, 2, 3], (0, 2, 3)),
        ([], [1, 2, 3], (2, 3, 4)),
        ([1, 2, 3], [0, 2, 3], (1, 2, 3)),
    ],
)
def test_layers_within_eagle_config_are_counted_as_in_sglang(tmp_path, top, nested, expected):
    settings = {"use_aux_hidden_state": True, "norm_before_residual": True, LAYERS: nested}
    given = native(tmp_path / "head", "eagle3/llama", eagle_config=settings, **{LAYERS: top})
    head, layers = read_eagle3(given, target_for().info())
    assert layers == expected
    assert head.shape.norm_before_residual
    export_eagle3(given, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())[LAYERS] == list(expected)


def test_rotary_frequencies_are_those_of_the_old_keys(tmp_path):
    given = native(tmp_path / "head", "eagle3/llama", rope_theta=500.0)
    head, _ = read_eagle3(given, target_for().info())
    exponents = torch.arange(0, 8, 2) / 8
    torch.testing.assert_close(head.rotary_emb.inv_freq, 500.0**-exponents)


def test_heads_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(ModelError, match="the mask_token_id None"):
        read_eagle3(native(tmp_path / "mask", "peagle/llama"), target_for().info())
    one = native(tmp_path / "one", "eagle3/llama", eagle_config={"use_aux_hidden_state": False})
    with pytest.raises(ModelError, match="use_aux_hidden_state: false"):
        read_eagle3(one, target_for().info())
    listed = native(tmp_path / "list", "eagle3/llama", eagle_config=[1])
    with pytest.raises(ModelError, match=r"eagle_config is not a mapping, but \[1\]"):
        read_eagle3(listed, target_for().info())
    (tmp_path / "list" / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ModelError, match=r"weight_map is not a mapping, but \[\]"):
        read_eagle3(listed, target_for().info())
    other = native(tmp_path / "other", "eagle3/llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(ModelError, match=r"no speculators_model_type \(it is a LlamaForCausalLM\)"):
        read_eagle3(other, target_for().info())
