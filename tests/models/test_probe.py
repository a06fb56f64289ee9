"""Families without tests of their own are verified when they are loaded, or refused."""

import pytest
import torch
import transformers

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import ModelSession, wrap_model
from specdec_core.models.load.probe import TESTED_FAMILIES
from specdec_core.testing.harness.tiny_target import random_model
from tests.generation.families import OLD, build
from tests.multimodal import IDS
from tests.tiny import FAMILIES, generated, tiny_model
from tests.toys import CountingDrafter, Gamma


def falcon():
    config = transformers.FalconConfig(**(IDS | OLD), alibi=True)
    return random_model(config, kind=transformers.FalconForCausalLM)


# Learned positions; ALiBi without position_ids; ALiBi with position_ids whose forward ignores our masks.
@pytest.mark.parametrize(("family", "ragged"), [("opt", True), ("bloom", False), ("falcon", False)])
def test_an_unknown_family_is_probed_and_decodes_like_generate(family, ragged):
    model = falcon() if family == "falcon" else build(family)
    loaded = wrap_model(model)
    assert model.config.model_type not in TESTED_FAMILIES
    assert loaded.family.ragged is ragged
    decoder = Decoder(loaded, CountingDrafter(40), gamma=Gamma(3, 1), sampling=SamplingSettings(temperature=0))
    prompts = [[3, 4, 5, 6], [7]]
    rows = decoder.generate(prompts, GenerationSettings(max_new_tokens=12)).sequences
    for prompt, row in zip(prompts, rows, strict=True):
        assert list(row.tokens) == generated(model, prompt, 12)


# A bias in each layer; embeddings that are asked for in three ways.
@pytest.mark.parametrize("family", ["umt5", "mbart", "marian", "pegasus", "m2m_100", "blenderbot"])
def test_other_encoder_decoder_models_take_ragged_rows_in_one_forward_pass(family):
    model = build(family)
    if family == "umt5":  # with sdpa, 5.17 of the library computes another bias than without
        model = transformers.UMT5ForConditionalGeneration._from_config(
            model.config, attn_implementation="eager"
        ).eval()
    loaded = wrap_model(model)
    assert model.config.model_type not in TESTED_FAMILIES
    assert loaded.family.ragged


def test_padding_tokens_within_a_text_get_no_position_in_m2m100():
    loaded = wrap_model(build("m2m_100"))
    logits = []
    for each in (loaded, loaded.row_by_row()):
        session = ModelSession(each, 2, 16, [[5, 6], [7, 8, 9]])
        session.forward([[2, 5, 6], [2, 5, 6]])
        session.rollback([3, 1])
        logits.append(session.forward([[0], [0]]))
    torch.testing.assert_close(*logits)


def test_a_position_bias_with_an_unknown_signature_is_not_used():
    model = tiny_model("t5")
    model.decoder.block[0].layer[1].extra = torch.nn.Module()
    model.decoder.block[0].layer[1].extra.relative_attention_bias = torch.nn.Embedding(4, 4)
    assert wrap_model(model).family.ragged


def test_a_family_that_fails_the_probe_is_an_error():
    model = build("opt")
    attention = model.model.decoder.layers[1].self_attn.v_proj

    def forgetful(_module, inputs, output):
        # Right for a whole text and wrong for a continuation, as with a wrong mask or position.
        return output * 1.5 if inputs[0].shape[1] < 4 else output

    attention.register_forward_hook(forgetful)
    with pytest.raises(ModelError, match="not those of an uncached forward pass"):
        wrap_model(model)


def test_every_family_that_counts_as_tested_is_tested():
    assert {tiny_model(family).config.model_type for family in FAMILIES} == set(TESTED_FAMILIES)
