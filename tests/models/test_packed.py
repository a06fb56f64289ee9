"""A model with packed weights says the same, and the one it was made from stays as it was."""

from __future__ import annotations

import pytest
import torch

from specdec_core.decoding import Decoder
from specdec_core.errors import ModelError
from specdec_core.models import load_model, pack, wrap_model
from specdec_core.models.packed import PackedLinear
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.study.config import TargetConfig
from specdec_core.study.making import load_target
from tests.tiny import DECODER_ONLY, ENCODER_DECODER, tiny_model
from tests.toys import Gamma, TableDrafter

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

VOCAB = 40
SOURCE, TOKENS = [3, 4, 5, 6], [1, 9, 10, 11, 12]


def logits_of(model, rows=1):
    ids = {"input_ids": torch.tensor([TOKENS] * rows)}
    if model.config.is_encoder_decoder:
        ids = {"input_ids": torch.tensor([SOURCE] * rows), "decoder_input_ids": torch.tensor([TOKENS] * rows)}
    with torch.inference_mode():
        return model(**ids, use_cache=False).logits


def packed_layers(model):
    return [name for name, layer in model.named_modules() if isinstance(layer, PackedLinear)]


@pytest.mark.parametrize("family", [*DECODER_ONLY, *ENCODER_DECODER])
def test_it_says_the_same(family):
    loaded = wrap_model(tiny_model(family))
    before = logits_of(loaded.model)
    packed = pack(loaded)
    torch.testing.assert_close(logits_of(packed.model), before, atol=1e-4, rtol=1e-4)
    assert torch.equal(logits_of(loaded.model), before)
    assert not packed_layers(loaded.model)
    linear = {name for name, layer in loaded.model.named_modules() if type(layer) is torch.nn.Linear}
    assert set(packed_layers(packed.model)) == linear
    assert linear


def test_weights_are_shared_and_keep_their_names(tmp_path):
    loaded = wrap_model(tiny_model("t5"))
    packed = pack(loaded)
    theirs = dict(packed.model.named_parameters())
    assert all(theirs[name] is weight for name, weight in loaded.model.named_parameters())
    packed.model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(type(loaded.model).from_pretrained(tmp_path).eval()), logits_of(loaded.model))


def test_bfloat16():
    loaded = wrap_model(tiny_model("llama", sharpness=1.0).to(torch.bfloat16))
    torch.testing.assert_close(logits_of(pack(loaded).model), logits_of(loaded.model), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_it_is_decoded_with_drafts_as_without_them(family):
    target = pack(wrap_model(tiny_model(family, VOCAB)))
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=True)
    argmax = SamplingSettings(temperature=0)
    plain = Decoder(target, sampling=argmax).generate([SOURCE], settings)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(4), sampling=argmax, strict=True)
    assert decoder.generate([SOURCE], settings).rows[0].tokens == plain.rows[0].tokens


def test_a_study_asks_for_it_by_a_key(tmp_path):
    tiny_model("t5").save_pretrained(tmp_path)
    whole = load_model(tmp_path, packed=True)
    assert packed_layers(whole.model)
    config = TargetConfig(model=str(tmp_path), packed=True, inflate={"layers": 2, "width": 96})
    larger = load_target(config)
    assert any("decoder.block.3" in name for name in packed_layers(larger.model)), "what was added is packed too"
    torch.testing.assert_close(logits_of(larger.model), logits_of(whole.model), atol=1e-4, rtol=1e-4)


def test_other_formats_are_refused():
    half = wrap_model(tiny_model("llama").to(torch.float16))
    with pytest.raises(ModelError, match=r"in float32 or bfloat16; these are on cpu, in float16\. Leave `packed`"):
        pack(half)


def test_a_device_without_a_cpu_library():
    loaded = wrap_model(tiny_model("llama"))
    loaded.model.to("meta")
    with pytest.raises(ModelError, match="these are on meta, in float32"):
        pack(loaded)
