"""A model of another's first layers is the model that has no others; the original stays as it was."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers

from specdec_core.interface import ModelError
from specdec_core.models import ModelSession, first_layers, load_model, pack, wrap_model
from specdec_core.models.fast.packing import PackedLinear
from specdec_core.models.variants import with_modules
from specdec_core.testing.harness.state import changed_state, model_state
from specdec_core.testing.harness.tiny_target import random_model
from tests.models.hybrids import hybrid
from tests.multimodal import IDS, SIZES
from tests.tiny import DECODER_ONLY, ENCODER_DECODER, tiny_model

SOURCE, TOKENS = [3, 4, 5, 6], [1, 9, 10, 11, 12, 7, 8, 2]
COUNT = {"gpt2": "n_layer", "t5": "num_decoder_layers", "bart": "decoder_layers"}
"""Config keys of the number of the decoder's layers; `num_hidden_layers` in other families."""


def logits_of(model):
    ids = {"input_ids": torch.tensor([TOKENS])}
    if model.config.is_encoder_decoder:
        ids = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([TOKENS])}
    with torch.inference_mode():
        return model(**ids, use_cache=False).logits


def rebuilt(model, family, layers):
    """Return a new model of the same class with fewer layers and the same weights."""
    config = copy.deepcopy(model.config)
    setattr(config, COUNT.get(family, "num_hidden_layers"), layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    other = type(model)(config)
    other.load_state_dict(model.state_dict(), strict=False)
    return other.eval()


@pytest.mark.parametrize("family", [*DECODER_ONLY, *ENCODER_DECODER])
def test_the_first_layers_are_a_model_that_was_built_with_fewer(family):
    loaded = wrap_model(tiny_model(family))
    state, whole = model_state(loaded.model, None), logits_of(loaded.model)
    exit_ = first_layers(loaded, 1)
    expected = logits_of(rebuilt(loaded.model, family, 1))
    torch.testing.assert_close(logits_of(exit_.model), expected)
    assert not torch.allclose(expected, whole, atol=0.1), "the last layer has no effect: nothing is shown"
    assert exit_.features.num_layers == 1
    assert torch.equal(logits_of(loaded.model), whole)
    assert changed_state(state, loaded.model, None) == []
    assert loaded.features.num_layers == 2

    session = ModelSession(exit_, 1, 20, [SOURCE] if loaded.encoder_decoder else None)
    session.forward([TOKENS[:3]])
    cached = session.forward([TOKENS[3:]])[0, -1]
    torch.testing.assert_close(cached, expected[0, -1], atol=1e-4, rtol=1e-4)


def test_what_was_found_of_a_model_holds_for_its_first_layers():
    loaded = wrap_model(hybrid("mamba"))
    assert first_layers(loaded, 1).family.single_token_modules == loaded.family.single_token_modules[:1] != ()


def test_layers_and_head_are_shared_packed_or_not():
    for loaded in (wrap_model(tiny_model("llama")), pack(wrap_model(tiny_model("llama")))):
        exit_ = first_layers(loaded, 1)
        assert exit_.model.model.layers[0] is loaded.model.model.layers[0]
        assert exit_.model.lm_head is loaded.model.lm_head
        ours = {id(weight) for weight in loaded.model.parameters()}
        assert all(id(weight) in ours for weight in exit_.model.parameters())
    assert isinstance(exit_.model.model.layers[0].mlp.up_proj, PackedLinear)


def test_layers_that_need_the_others_are_refused():
    sizes = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40, "head_dim": 8}
    loaded = wrap_model(random_model(transformers.Gemma4TextConfig(**{**SIZES, **IDS, **sizes})))
    with pytest.raises(ModelError, match="its first 1 layers do not run without the others"):
        first_layers(loaded, 1)


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_number_of_layers_that_is_none(count):
    with pytest.raises(ModelError, match=f"has 2 layers, and {count} were asked for; take 1 to 1"):
        first_layers(wrap_model(tiny_model("llama")), count)


def test_layers_spread_over_devices_are_not_shared():
    loaded = wrap_model(tiny_model("llama"))
    loaded.model.hf_device_map = {"model.layers.0": "cpu", "model.layers.1": "disk"}
    with pytest.raises(ModelError, match="its weights are spread over devices, so that its layers"):
        first_layers(replace(loaded), 1)


def test_a_module_is_replaced_in_the_copy_alone():
    loaded = load_model("builtin:target", packed=False)
    head, before = loaded.model.lm_head, logits_of(loaded.model)
    twice = torch.nn.Sequential(head, torch.nn.Threshold(float("-inf"), 0.0)).eval()
    changed = with_modules(loaded, {id(head): twice})
    assert changed.model.lm_head is twice
    assert loaded.model.lm_head is head
    assert changed.model.model is loaded.model.model
    torch.testing.assert_close(logits_of(changed.model), before)
