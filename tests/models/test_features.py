"""Features: the embeddings of a model and its fingerprint."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from specdec_core.interface import ModelError
from specdec_core.models import inflate, load_model, wrap_model
from specdec_core.models.features import features_of
from tests.tiny import FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_times_output_embeddings_are_the_logits(family):
    model = tiny_model(family)
    features = features_of(model)
    ids = torch.tensor([[2, 3, 4, 5]])
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode(), features.capture() as seen:
        logits = model(input_ids=ids, **more).logits
    assert seen[-1].shape[-1] == features.hidden_size
    torch.testing.assert_close(seen[-1] @ features.output_embeddings.T, logits)
    assert features.input_embeddings.shape[0] >= logits.shape[-1]


def test_nothing_is_captured_after_an_error():
    model = tiny_model("llama")
    features = features_of(model)
    with pytest.raises(RuntimeError, match="stop"), features.capture() as seen:
        raise RuntimeError("stop")
    model(torch.tensor([[2, 3]]))
    assert seen == []


def test_the_fingerprint_depends_on_the_weights():
    model = tiny_model("llama")
    digest = features_of(model).fingerprint()
    assert digest == features_of(copy.deepcopy(model)).fingerprint()
    assert digest == features_of(copy.deepcopy(model).to(torch.bfloat16)).fingerprint()
    assert digest != features_of(tiny_model("llama", seed=1)).fingerprint()
    assert digest != features_of(tiny_model("qwen3")).fingerprint()


def test_the_fingerprint_survives_saving_and_inflating(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.features.fingerprint() == features_of(model).fingerprint()
    larger = inflate(loaded, layers=1)
    assert larger.features.fingerprint() == loaded.features.fingerprint()
    assert larger.info().features is larger.features


def test_a_model_without_an_output_embedding_has_no_features():
    model = wrap_model(tiny_model("llama")).model
    model.get_output_embeddings = lambda: None
    assert features_of(model) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_the_outputs_of_layers_are_those_of_transformers_and_the_last_is_before_the_norm(family):
    model = tiny_model(family)
    features = features_of(model)
    assert features.num_layers == 2
    ids = torch.tensor([[2, 3, 4, 5]])
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode(), features.capture_layers([0, 1, 2]) as layers:
        output = model(input_ids=ids, output_hidden_states=True, **more)
        states = output.decoder_hidden_states if more else output.hidden_states
        for layer in (0, 1):
            torch.testing.assert_close(layers[layer], states[layer])
        # T5 and GPT-2 name their final norm otherwise, and BART has none.
        decoder = model.get_decoder()
        norm = next(
            (getattr(decoder, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(decoder, name)),
            None,
        )
        last = layers[2] if norm is None else norm(layers[2])
        torch.testing.assert_close(last, states[2])


def test_only_the_layers_that_are_named_are_captured_in_this_thread_and_until_the_end():
    model = tiny_model("llama")
    features, ids = features_of(model), torch.tensor([[2, 3]])
    with torch.inference_mode(), features.capture_layers([1]) as outer:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model, ids).result()
        assert outer == {}
        model(ids)
        assert list(outer) == [1]
        before = outer[1]
    model(ids)
    assert outer[1] is before


def test_layers_that_a_model_does_not_have():
    features = features_of(tiny_model("llama"))
    with pytest.raises(ModelError, match=r"has 2 layers; the outputs of \[0, 3\] were asked for"):
        features.capture_layers([0, 3]).__enter__()
