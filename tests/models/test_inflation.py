"""An inflated model costs more and gives the same distributions."""

import copy

import pytest
import torch
import transformers

from specdec_core.interface import ModelError
from specdec_core.models import ModelSession, inflate, wrap_model
from specdec_core.models.features import features_of
from tests.models.hybrids import hybrid
from tests.pairwise import some
from tests.tiny import tiny_model

LLAMAS = ("llama", "qwen3", "gemma3")
SOURCE, TOKENS = [3, 4, 5, 6, 7, 8], [1, 9, 10, 11, 12]


def logits_of(model, tokens=TOKENS):
    """Return the logits of every position, from a forward pass without a cache."""
    ids = {"input_ids": torch.tensor([tokens])}
    if model.config.is_encoder_decoder:
        ids = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([tokens])}
    with torch.inference_mode():
        return model(**ids, use_cache=False).logits[0]


def pre_norm(vocab=40):
    """A model of M2M100's shape, with more layers in its encoder than in its decoder."""
    torch.manual_seed(0)
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()}
    sizes["encoder_layers"] = 3
    # Its positions count no padding, so that answers begin with the end of a sequence, as NLLB's do.
    ids = {
        "vocab_size": vocab,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "decoder_start_token_id": 1,
    }
    config = transformers.M2M100Config(d_model=32, max_position_embeddings=64, **sizes, **ids)
    return transformers.M2M100ForConditionalGeneration(config).eval()


SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
MAKERS = {
    **{family: (lambda family=family: tiny_model(family)) for family in (*LLAMAS, "t5")},
    "gated t5": lambda: tiny_model("t5", feed_forward_proj="gated-gelu", num_decoder_layers=1),
    "m2m100": pre_norm,
    "qwen3_5": lambda: hybrid("qwen3_5"),
}


@pytest.fixture(params=some(MAKERS, 4))
def loaded(request):
    return wrap_model(MAKERS[request.param]())


def test_inflating_keeps_the_distribution_and_the_original(loaded):
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    config, logits = copy.deepcopy(loaded.model.config.to_dict()), logits_of(loaded.model)
    larger = inflate(loaded, layers=3, width=96)
    assert torch.equal(logits_of(larger.model), logits)
    assert loaded.model.config.to_dict() == config
    after = loaded.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert torch.equal(logits_of(loaded.model), logits)


def test_an_inflated_model_decodes_with_a_cache_that_is_rolled_back(loaded):
    larger = inflate(loaded, layers=2)
    session = ModelSession(larger, 2, 16, [SOURCE, SOURCE[:3]] if loaded.encoder_decoder else None)
    session.forward([TOKENS[:2], TOKENS[:1]], torch.tensor([[20, 21], [22, 23]]), (2, 1))
    session.rollback([2, 1])
    logits = session.forward([TOKENS[read:4] for read in session.lengths], torch.tensor([[12], [13]]))
    torch.testing.assert_close(logits[0], logits_of(loaded.model)[-2:], atol=2e-4, rtol=1e-4)


def test_the_config_has_the_new_sizes_so_that_it_can_be_saved(loaded, tmp_path):
    larger = inflate(loaded, layers=2)
    larger.model.save_pretrained(tmp_path)
    again = type(larger.model).from_pretrained(tmp_path)
    assert again.num_parameters() == larger.model.num_parameters()
    assert torch.equal(logits_of(again), logits_of(loaded.model))


def test_every_added_weight_is_used():
    """In each stack of a T5, four projections a layer of attention and two of the feed-forward part."""
    loaded = wrap_model(tiny_model("t5"))
    larger = inflate(loaded, layers=3, width=96)
    attention, feed_forward, norm = 4 * 32 * 32, 2 * 32 * 96, 32
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    assert larger.model.num_parameters() - loaded.model.num_parameters() == 3 * (encoder + decoder)
    read = set()
    for name, module in larger.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _m, _i, _o, name=name: read.add(name))
    logits_of(larger.model)
    assert read == {name for name, module in larger.model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert sum(name.startswith("encoder.block.4.") for name in read) == 6
    assert sum(name.startswith("decoder.block.4.") for name in read) == 10


def test_an_encoder_may_be_given_narrower_layers():
    loaded = wrap_model(tiny_model("t5"))
    larger = inflate(loaded, layers=2, width=96, encoder_width=8)
    assert torch.equal(logits_of(larger.model), logits_of(loaded.model))
    widths = {
        name: [block.layer[-1].DenseReluDense.wi.out_features for block in getattr(larger.model, name).block[2:]]
        for name in ("encoder", "decoder")
    }
    assert widths == {"encoder": [8, 8], "decoder": [96, 96]}


def test_heads_trained_on_a_model_fit_the_inflated_one():
    loaded = wrap_model(tiny_model("t5"))
    larger = inflate(loaded, layers=1)
    assert larger.features.fingerprint() == loaded.features.fingerprint()
    assert larger.features.fingerprint() != features_of(larger.model).fingerprint()
    assert (larger.start_id, larger.encoder_decoder) == (loaded.start_id, True)


def test_unsupported_shapes_are_an_error():
    with pytest.raises(ModelError, match="GPT2LMHeadModel cannot be inflated"):
        inflate(wrap_model(tiny_model("gpt2")), layers=1)


def test_post_norm_models_are_an_error():
    model = tiny_model("bart")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("layer_norm.weight"):  # untrained, it would hardly matter how often one is applied
                weight.add_(torch.linspace(-0.5, 0.5, len(weight)))
    with pytest.raises(
        ModelError, match="BartForConditionalGeneration cannot be inflated: added layers change its output"
    ):
        inflate(wrap_model(model), layers=1)
