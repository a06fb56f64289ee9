"""Families without tests of their own are verified when they are loaded, or refused."""

from __future__ import annotations

import pytest
import torch
import transformers

from specdec_core.decoding import Decoder
from specdec_core.interface import ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import TESTED_FAMILIES, ModelSession, wrap_model
from specdec_core.testing.harness.tiny_target import random_model
from tests.tiny import BOTH_SIDES, FAMILIES, tiny_model
from tests.toys import CountingDrafter, Gamma

IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def other(family):
    torch.manual_seed(0)
    if family == "opt":
        config = transformers.OPTConfig(ffn_dim=48, word_embed_proj_dim=32, **SIZES, **IDS)
        return transformers.OPTForCausalLM(config).eval()
    if family == "bloom":
        return transformers.BloomForCausalLM(
            transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **IDS)
        ).eval()
    return transformers.FalconForCausalLM(transformers.FalconConfig(alibi=True, **SIZES, **IDS)).eval()


# Learned positions; ALiBi without position_ids; ALiBi with position_ids whose forward ignores our masks.
@pytest.mark.parametrize(("family", "ragged"), [("opt", True), ("bloom", False), ("falcon", False)])
def test_an_unknown_family_is_probed_and_decodes_like_generate(family, ragged):
    model = other(family)
    loaded = wrap_model(model)
    assert model.config.model_type not in TESTED_FAMILIES
    assert loaded.family.ragged is ragged
    decoder = Decoder(loaded, CountingDrafter(40), gamma=Gamma(3, 1), sampling=SamplingSettings(temperature=0))
    prompts = [[3, 4, 5, 6], [7]]
    rows = decoder.generate(prompts, GenerationSettings(max_new_tokens=12)).sequences
    for prompt, row in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert list(row.tokens) == expected[0, len(prompt) :].tolist()


# A bias in each layer; embeddings that are asked for in three ways.
@pytest.mark.parametrize("family", ["UMT5", "MBart", "Marian", "Pegasus", "M2M100", "Blenderbot"])
def test_other_encoder_decoder_models_take_ragged_rows_in_one_forward_pass(family):
    sizes = {"d_model": 32, "decoder_start_token_id": 2}  # which is no padding: M2M100 does not count that
    if family == "UMT5":
        # With sdpa, 5.17 of the library computes another one than without.
        sizes |= {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "attn_implementation": "eager"}
    else:
        sizes |= {**BOTH_SIDES, "max_position_embeddings": 64}
    model = random_model(getattr(transformers, f"{family}Config")(**sizes, **IDS))
    loaded = wrap_model(model)
    assert model.config.model_type not in TESTED_FAMILIES
    assert loaded.family.ragged


def test_padding_tokens_within_a_text_get_no_position_in_m2m100():
    config = transformers.M2M100Config(d_model=32, decoder_start_token_id=2, **BOTH_SIDES, **IDS)
    loaded = wrap_model(random_model(config))
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
    model = other("opt")
    attention = model.model.decoder.layers[1].self_attn.v_proj

    def forgetful(_module, inputs, output):
        # Right for a whole text and wrong for a continuation, as with a wrong mask or position.
        return output * 1.5 if inputs[0].shape[1] < 4 else output

    attention.register_forward_hook(forgetful)
    with pytest.raises(ModelError, match="not those of an uncached forward pass"):
        wrap_model(model)


def test_every_family_that_counts_as_tested_is_tested():
    assert {tiny_model(family).config.model_type for family in FAMILIES} == set(TESTED_FAMILIES)
