"""`packed: int8`: a target whose weights are rounded for a CPU decodes its own distribution."""

import pytest
import torch
from pydantic import ValidationError

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models import inflate, load_as_set, load_model, pack, quantize, wrap_model
from specdec_core.models.fast.packed_linear import PackedLinear
from specdec_core.models.fast.packing import describe_hardware, pack_as_set
from specdec_core.offline.record.recorded_target import fingerprint_weights
from specdec_core.offline.record.store import read_record
from tests.tiny import tiny_model
from tests.toys import Gamma, TableDrafter

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

VOCAB = 40
SOURCES = [[3, 4, 5, 6], [7, 8]]


def logits_of(model, tokens):
    with torch.inference_mode():
        return model(input_ids=torch.tensor(tokens), use_cache=False).logits


@pytest.mark.parametrize(("family", "sizes"), [("llama", {"head_dim": 16}), ("gpt2", {}), ("t5", {})])
def test_greedy_texts_with_drafts_are_those_without(family, sizes):
    target = quantize(wrap_model(tiny_model(family, VOCAB, **sizes)), 8)
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=True)
    argmax = SamplingSettings(temperature=0)
    plain = Decoder(target, sampling=argmax).generate(SOURCES, settings)
    drafted = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(4), sampling=argmax, strict=True).generate(
        SOURCES, settings
    )
    assert [each.tokens for each in drafted.sequences] == [each.tokens for each in plain.sequences]


def test_a_study_rounds_with_a_setting():
    target = load_as_set(TargetConfig(model="builtin:target", packed="int8"))
    plain = load_model("builtin:target", packed=False)
    assert any(isinstance(layer, PackedLinear) for layer in target.model.modules())
    assert target.name == plain.name
    assert describe_hardware(target) == f"{describe_hardware(plain)}, 8-bit weights"
    tokens = [[5, 6, 7, 8, 9, 10]]
    p, q = (logits_of(each.model, tokens).softmax(-1) for each in (plain, target))
    assert 0.9 < torch.minimum(p, q).sum(-1).mean() < 1 - 1e-6


def test_a_record_of_the_original_is_not_one_of_the_rounded_target():
    recorded = read_record("builtin:code").header.fingerprint
    assert fingerprint_weights(load_model("builtin:target")) == recorded
    assert fingerprint_weights(load_model("builtin:target", packed="int8")) == f"{recorded}-int8"


EXIT = {"name": "early-exit", "model": "builtin:early-exit"}


@pytest.mark.parametrize(
    ("packed", "drafter"),
    [
        ("int8", {"name": "heads", "model": "builtin:heads"}),
        pytest.param("int8", {"name": "eagle3", "model": "builtin:eagle3"}, marks=pytest.mark.slow),
        pytest.param("int8", EXIT, marks=pytest.mark.slow),
        pytest.param(
            False,
            {"name": "hierarchical", "middle": {"name": "quantized", "bits": 4}, "drafter": EXIT, "gamma": 1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["heads", "eagle3", "early-exit", "middle"],
)
def test_drafters_that_were_trained_for_the_original_draft_for_the_rounded_target(packed, drafter):
    target = load_model("builtin:target", packed=packed)
    prompt = target.tokenizer.encode("def read(path):\n    with open(path) as file:\n        return ")
    settings, argmax = GenerationSettings(max_new_tokens=24, ignore_eos=True), SamplingSettings(temperature=0)
    plain = Decoder(target, sampling=argmax).generate([prompt], settings)
    drafted = Decoder(target, drafter, gamma=Gamma(2), sampling=argmax, strict=True).generate([prompt], settings)
    assert drafted.metrics.accepted > 0
    assert drafted.sequences[0].tokens == plain.sequences[0].tokens


@pytest.mark.parametrize(
    ("function", "setting"),
    [
        (pack, "packed"),
        (lambda loaded: inflate(loaded, 1), "inflate"),
        (lambda loaded: quantize(loaded, 8), "quantize"),
    ],
)
def test_rounded_weights_are_not_changed_again(function, setting):
    with pytest.raises(ModelError, match=f"its weights are quantized, which excludes `{setting}`"):
        function(quantize(wrap_model(tiny_model("llama")), 8))


def test_other_devices_and_quantization_methods_are_errors():
    loaded = wrap_model(tiny_model("llama"))
    loaded.model.to("meta")
    with pytest.raises(ModelError, match="`packed: int8` is for a CPU; this model is on meta"):
        pack_as_set(loaded, "int8")
    with pytest.raises(ValidationError, match="quantized weights cannot be packed"):
        TargetConfig(model="builtin:target", packed="int8", quantization_config={"load_in_8bit": True})
