"""A record holds the texts of the live baseline, with the probability that each token was drawn with."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.offline.record import decode
from specdec_core.offline.record.decode import Kept, TextJob, forced_pass, record_texts
from specdec_core.testing.harness.enumeration import adjusted
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.compiled import compiled
from tests.tiny import FAMILIES, tiny_model

PROMPTS = ((2, 3, 5, 2, 3, 7, 9), (4, 6), (5, 5, 4, 3))
SEEDS = (11, 12, 13)
JOB = TextJob(tuple((one,) for one in PROMPTS), ((0,), (1,), (2,)), (0, 0, 0), tuple((seed,) for seed in SEEDS))
SETTINGS = {
    "greedy": SamplingSettings(temperature=0),
    "plain": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.7, top_p=0.8, top_k=20),
    "penalized": SamplingSettings(temperature=1.2, repetition_penalty=1.4),
    "greedy-penalized": SamplingSettings(temperature=0, repetition_penalty=1.4),
}


def target(family, device="cpu"):
    return wrap_model(tiny_model(family, sharpness=2.0).to(device))


def exact(loaded, text, settings):
    """Return p at each position of a text, from forward passes without a cache and filters written out."""
    begin = list(text.prompt) if loaded.start_id is None else [loaded.start_id]
    tokens = text.tokens.tolist()
    logits = uncached_logits(loaded, [begin + tokens], text.prompt)[0, len(begin) - 1 : -1]
    return torch.stack([adjusted(one, settings, begin + tokens[:n]) for n, one in enumerate(logits)])


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param(*pair, id="-".join(pair), marks=() if number % 4 == 0 else pytest.mark.slow)
        for number, pair in enumerate(product(FAMILIES, SETTINGS))
    ],
)
def test_texts_are_those_of_the_baseline_and_probabilities_are_the_target_s(family, settings, device):
    loaded, settings = target(family, device), SETTINGS[settings]
    length = GenerationSettings(max_new_tokens=14)
    live = Decoder(loaded, sampling=settings).generate(PROMPTS, length, seeds=SEEDS)
    texts = record_texts(loaded, JOB, settings, length)
    assert [text.tokens.tolist() for text in texts] == [list(one.tokens) for one in live]
    assert [text.finish_reason for text in texts] == [one.finish_reason for one in live]
    assert [text.prompt for text in texts] == list(PROMPTS)
    for text in texts:
        p = exact(loaded, text, settings).gather(1, torch.tensor(text.tokens)[:, None])[:, 0]
        assert text.probabilities == pytest.approx(p.numpy(), abs=1e-5)
        assert text.probabilities.dtype == np.float32


def test_texts_end_at_stop_strings_and_with_the_context():
    from specdec_core.testing.harness.tiny_target import number_tokenizer

    short = wrap_model(tiny_model("llama", sharpness=2.0, max_position_embeddings=12), number_tokenizer(40))
    settings = GenerationSettings(max_new_tokens=14, ignore_eos=True)
    texts = record_texts(short, JOB, SamplingSettings(), settings)
    assert [text.finish_reason for text in texts] == ["context"] * 3
    assert [len(text.tokens) for text in texts] == [5, 10, 8]
    third = texts[1].tokens.tolist()[2]
    stopped = record_texts(short, JOB, SamplingSettings(), settings.model_copy(update={"stop": (f" {third}",)}))
    assert stopped[1].finish_reason == "stop"
    assert stopped[1].tokens.tolist() == texts[1].tokens.tolist()[: len(stopped[1].tokens)]
    assert stopped[1].probabilities == pytest.approx(texts[1].probabilities[: len(stopped[1].tokens)])


@pytest.mark.parametrize("settings", [SETTINGS["filtered"], SETTINGS["greedy"]], ids=["filtered", "greedy"])
def test_the_most_probable_tokens(settings):
    loaded = target("llama")
    texts = record_texts(loaded, JOB, settings, GenerationSettings(max_new_tokens=14), Kept(top_k=3))
    for text in texts:
        # Greedy decoding keeps the model's own probabilities: p is one-hot.
        p = exact(loaded, text, SamplingSettings() if settings.greedy else settings)
        values, tokens = p.topk(3)
        assert text.top_tokens.shape == text.top_probabilities.shape == (len(text.tokens), 3)
        assert text.top_probabilities == pytest.approx(values.numpy(), abs=1e-5)
        sure = (values[:, :-1] - values[:, 1:]).min(dim=1).values > 1e-4
        assert (text.top_tokens[sure.numpy()] == tokens.numpy()[sure.numpy()]).all()
        assert sure.any()


@pytest.mark.parametrize(
    ("family", "positions"),
    [("llama", 1), ("llama", 128), ("gemma3", 4), ("t5", 4), ("bart", 1)],
)
def test_hidden_states_are_those_that_each_token_was_predicted_from(family, positions, monkeypatch, device):
    monkeypatch.setattr(decode, "POSITIONS", positions)
    loaded = target(family, device)
    kept = Kept(hidden="float32")
    texts = record_texts(loaded, JOB, SamplingSettings(), GenerationSettings(max_new_tokens=9), kept)
    head = loaded.features.output_embeddings
    for text in texts:
        assert text.hidden.shape == (len(text.tokens), loaded.features.hidden_size)
        begin = list(text.prompt) if loaded.start_id is None else [loaded.start_id]
        with loaded.features.capture() as seen:
            uncached_logits(loaded, [begin + text.tokens.tolist()], text.prompt)
        expected = seen[-1][0, len(begin) - 1 : -1]
        assert text.hidden == pytest.approx(expected.cpu().numpy(), abs=1e-4)
        found = forced_pass(loaded, text.prompt, text.tokens.tolist())
        assert torch.equal(found.hidden.cpu(), torch.tensor(text.hidden))
    assert head.shape[1] == texts[0].hidden.shape[1]


def test_hidden_states_of_layers_stay_after_their_session_has_given_its_cache_back():
    loaded = target("llama")
    found = [forced_pass(one, PROMPTS[0], [3, 4, 5], layers=(1, 2)) for one in (loaded, compiled(loaded, "fixed"))]
    assert set(found[0].layers) == {1, 2}
    for layer, states in found[0].layers.items():
        torch.testing.assert_close(found[1].layers[layer], states)


def test_hidden_states_that_float16_cannot_hold_are_kept_in_float32(monkeypatch):
    loaded = target("llama")
    length = GenerationSettings(max_new_tokens=4)
    small = record_texts(loaded, JOB, SamplingSettings(), length, Kept(hidden="float16"))[0]
    assert small.hidden.dtype == np.float16

    def large(*args, **keywords):
        found = forced_pass(*args, **keywords)
        return replace(found, hidden=found.hidden * 1e6)

    monkeypatch.setattr(decode, "forced_pass", large)
    text = record_texts(loaded, JOB, SamplingSettings(), length, Kept(hidden="float16"))[0]
    assert text.hidden.dtype == np.float32
    assert np.isfinite(text.hidden).all()
