"""Models that treat long texts differently: windows, and rotary frequencies that change with length."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import transformers

from specdec_core import generate_with
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.testing.harness.tiny_target import random_model
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests import tiny
from tests.lossless import VOCAB, enumerate_continuations, p_value, sample
from tests.pairwise import some
from tests.tiny import BOTH_SIDES
from tests.toys import CountingDrafter, Gamma, SparseDrafter

WINDOW, SWITCH, LONGEST = 20, 24, 96
IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
# Texts vary with such weights.
SIZES = tiny.SIZES | {"max_position_embeddings": LONGEST, "initializer_range": 0.4}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 3.0, 9.0, 20.0],
    "original_max_position_embeddings": SWITCH,
    "rope_theta": 10000.0,
}
CONFIGS = {
    "gpt-neo": ("GPTNeo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "gemma2": ("Gemma2", {"sliding_window": WINDOW, "head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": WINDOW, "head_dim": 8}),
    "phi3 longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": SWITCH}),
    "llama longrope": ("Llama", {"rope_parameters": {**LONGROPE, "factor": 4.0}}),
    "llama dynamic": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0},
            "max_position_embeddings": SWITCH,
        },
    ),
}


def model_of(name, **settings):
    architecture, own = CONFIGS[name]
    sizes = {
        key: value
        for key, value in SIZES.items()
        if architecture != "GPTNeo" or key[:4] in ("hidd", "init", "max_")
    }
    if architecture == "GPTNeo":
        sizes["window_size"] = WINDOW
    return random_model(getattr(transformers, f"{architecture}Config")(**{**sizes, **IDS, **own, **settings}))


def greedy(loaded, prompts, tokens=24, drafter=None, gamma=(3, 1, 2)):
    decoder = Decoder(
        loaded,
        drafter or CountingDrafter(loaded.vocab_size),
        gamma=Gamma(*gamma[: len(prompts)]),
        sampling=SamplingSettings(temperature=0),
        strict=True,
    )
    return decoder.generate(prompts, GenerationSettings(max_new_tokens=tokens, ignore_eos=True)).sequences


generated = partial(tiny.generated, count=24, eos_token_id=None)


PROMPTS = [[3, 4, 5, 6], [7, 8, 9] * 6, list(range(2, 32))]
"""Before, at and past the window."""


WINDOWED = [("gpt-neo", False), *((name, True) for name in ("qwen2", "phi3", "gemma2", "mistral"))]


@pytest.mark.parametrize(("name", "ragged"), some(WINDOWED, 2))
def test_rows_before_and_past_a_window_are_those_of_generate(name, ragged):
    model = model_of(name)
    loaded = wrap_model(model)
    assert loaded.family.ragged is ragged
    expected = [generated(model, prompt) for prompt in PROMPTS]
    assert [list(row.tokens) for row in greedy(loaded, PROMPTS)] == expected
    assert [list(row.tokens) for prompt in PROMPTS for row in greedy(loaded, [prompt])] == expected
    assert len({token for row in expected for token in row}) >= 3


@pytest.mark.parametrize("name", ["gpt-neo", "phi3"])
def test_a_window_is_no_shorter_in_the_model_that_was_proved(name):
    model = model_of(name, **{"gpt-neo": {"window_size": 256}, "phi3": {"sliding_window": 47}}[name])
    weights = {key: weight.data_ptr() for key, weight in model.named_parameters()}
    loaded = wrap_model(model)
    assert loaded.model is model
    assert {key: weight.data_ptr() for key, weight in model.named_parameters()} == weights
    config = model.config
    assert (config.window_size if name == "gpt-neo" else config.sliding_window) in (256, 47)
    assert list(greedy(loaded, [[5, 6, 7] * 10])[0].tokens) == generated(model, [5, 6, 7] * 10)


def test_a_family_that_is_wrong_past_its_window_is_refused():
    config = transformers.DogeConfig(**SIZES, **IDS, keep_window_size=2048)
    with pytest.raises(ModelError, match=r"'doge', full_attention, keep_window_size\).*relative error"):
        wrap_model(random_model(config))


def test_a_window_that_attention_ignores_is_refused():
    model = random_model(transformers.LlamaConfig(**SIZES, **IDS, sliding_window=4096))
    with pytest.raises(ModelError, match="sliding_window = 4096, which its attention ignores"):
        wrap_model(model)


def test_a_window_that_cannot_be_tested_takes_a_pass_per_row():
    model = model_of("phi3")
    model.hf_quantizer = object()  # as if its weights were quantized: there is no twin
    loaded = wrap_model(model)
    del model.hf_quantizer
    assert not loaded.family.ragged
    assert [list(row.tokens) for row in greedy(loaded, PROMPTS)] == [generated(model, p) for p in PROMPTS]


@pytest.mark.parametrize("architecture", ["Gemma3Text", "Gemma2"])
def test_attention_to_later_tokens_is_refused(architecture):
    config = getattr(transformers, f"{architecture}Config")(**SIZES, **IDS, use_bidirectional_attention=True)
    with pytest.raises(ModelError, match="tokens attend to later ones"):
        wrap_model(random_model(config))


@pytest.mark.parametrize(
    "name", ["phi3 longrope", "llama dynamic", pytest.param("llama longrope", marks=pytest.mark.slow)]
)
def test_rows_end_where_rotary_frequencies_change(name):
    model = model_of(name)
    loaded = wrap_model(model)
    assert loaded.max_positions == SWITCH
    prompts = [[3, 4, 5, 6], [7, 8] * 10, list(range(2, 1 + SWITCH))]
    for batch in (prompts, *([prompt] for prompt in prompts)):
        for prompt, row in zip(batch, greedy(loaded, batch), strict=True):
            assert len(row.tokens) == SWITCH - len(prompt)
            assert row.finish_reason == "context"
            assert list(row.tokens) == generated(model, prompt)[: len(row.tokens)]
    with pytest.raises(PromptError, match=f"has {SWITCH} tokens; .* takes {SWITCH}"):
        greedy(loaded, [[3] * SWITCH])


@pytest.mark.parametrize("name", ["phi3 longrope", pytest.param("llama longrope", marks=pytest.mark.slow)])
def test_rows_that_begin_past_the_switch_have_the_frequencies_of_long_texts(name):
    model = model_of(name)
    loaded = wrap_model(model)
    prompts = [[5, 6, 7] * 12, list(range(2, 3 + SWITCH))]
    expected = [generated(model, prompt) for prompt in prompts]
    assert [list(row.tokens) for row in greedy(loaded, prompts)] == expected
    with pytest.raises(PromptError, match=r"prompt 0 has more than 24 tokens and prompt 1 has not.*two batches"):
        greedy(loaded, [prompts[0], [3, 4]])


@pytest.mark.filterwarnings("ignore:TransformerDrafter takes at most:specdec_core.interface.errors.PluginWarning")
def test_a_drafter_drafts_up_to_its_switch_and_a_row_not_by_its_neighbors(tmp_path):
    model_of("phi3 longrope").save_pretrained(tmp_path)
    target = wrap_model(model_of("mistral"))
    drafter = TransformerDrafter(TransformerConfig(model=str(tmp_path)), target.info())
    decoder = Decoder(target, drafter, gamma=Gamma(3), strict=True)
    settings = GenerationSettings(max_new_tokens=40, ignore_eos=True)
    first, second = [3, 4, 5, 6], [7, 8] * 15
    alone = decoder.generate([first], settings)
    assert alone.metrics.drafted > 0
    assert decoder.generate([first, second], settings).sequences[0].tokens == alone.sequences[0].tokens
    assert decoder.generate([second], settings).metrics.drafted == 0


def test_threads_on_both_sides_of_the_switch_do_not_mix_frequencies():
    loaded = wrap_model(model_of("phi3 longrope"))
    prompts = [[3, 4, 5, 6], [5, 6, 7] * 12]
    alone = [greedy(loaded, [prompt], 16) for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        runs = [(n, pool.submit(greedy, loaded, [prompts[n]], 16)) for _ in range(3) for n in (0, 1)]
        for n, run in runs:
            assert run.result()[0].tokens == alone[n][0].tokens


SAMPLED = [("phi3 longrope", SWITCH + 1), ("phi3", WINDOW - 1), ("gpt-neo", WINDOW - 1)]
SAMPLED += [(name, SWITCH - 3) for name in ("phi3 longrope", "llama dynamic")]


@pytest.mark.parametrize(("name", "length"), some(SAMPLED, 1))
def test_sampling_is_lossless(name, length):
    loaded = wrap_model(model_of(name, vocab_size=VOCAB, initializer_range=0.1))
    prompt = [2 + n % 3 for n in range(length)]
    settings = SamplingSettings(temperature=1.5)
    decoder = Decoder(loaded, SparseDrafter(VOCAB), gamma=Gamma(2, 3), sampling=settings, strict=True)
    expected = enumerate_continuations(loaded, settings, prompt)
    assert p_value(sample(decoder, 600, 1800, prompt), expected) > 1e-4


DENSE = {"layer_types": ["full_attention"] * 2}
DENSE_HYBRIDS = {
    "GraniteMoeHybrid": {"mamba_n_heads": 4, "num_local_experts": 0, "shared_intermediate_size": 48, **DENSE},
    "Qwen3Next": {"num_experts": 2, "num_experts_per_tok": 1, **DENSE},
    "NemotronH": {"layers_block_type": ["attention", "mlp"]},
}


@pytest.mark.parametrize("name", DENSE_HYBRIDS)
def test_members_of_hybrid_families_whose_layers_are_all_attention(name):
    sizes = {**SIZES, **IDS, "head_dim": 8, **DENSE_HYBRIDS[name]}
    sizes.pop("num_hidden_layers" if name == "NemotronH" else "", None)
    model = random_model(getattr(transformers, f"{name}Config")(**sizes))
    (row,) = greedy(wrap_model(model), [[5, 6, 7]])
    assert list(row.tokens) == generated(model, [5, 6, 7])


def test_the_limits_of_positions_have_other_names():
    sizes = {"d_model": 32, **BOTH_SIDES, "attention_window": 8, "decoder_start_token_id": 2, **IDS}
    limits = {"max_decoder_position_embeddings": 12, "max_encoder_position_embeddings": 64}
    loaded = wrap_model(random_model(transformers.LEDConfig(**sizes, **limits)))
    (row,) = Decoder(loaded, temperature=0).generate([[5, 6, 7] * 8], max_new_tokens=40, ignore_eos=True).sequences
    assert (len(row.tokens), row.finish_reason) == (11, "context")


def test_experts_that_take_few_tokens_of_a_pass_are_refused():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_experts": 4}
    config = transformers.SwitchTransformersConfig(**sizes, **IDS, decoder_start_token_id=0)
    with pytest.raises(ModelError, match="takes 64 tokens of a forward pass at most"):
        wrap_model(random_model(config))


def test_experts_with_room_for_all_tokens_of_a_pass_are_decoded():
    sizes = {"d_model": 32, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, **BOTH_SIDES}
    model = random_model(transformers.NllbMoeConfig(**sizes, **IDS, decoder_start_token_id=2))
    settings = {"max_new_tokens": 12, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]), **settings}
    function = generate_with(CountingDrafter(40), gamma=Gamma(3, 1), strict=True)
    found, expected = (model.generate(**inputs, custom_generate=one).logits for one in (function, None))
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), atol=1e-4, rtol=1e-4)
    assert function.metrics.drafted > 0
