"""Penalties, biases, bad words and a least length: exact in all forms of decoding."""

import pytest
import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, TokenTree
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.sampling.logits import LogitsToProbs, with_token_ids
from specdec_core.testing.harness.toys import Hierarchy
from tests.lossless import EOS, LENGTH, PROMPT, VOCAB, doubled_p_value, enumerate_continuations, small_target
from tests.tiny import tiny_model
from tests.toys import Gamma, TableDrafter

OURS = {
    "presence_penalty": 1.5,
    "frequency_penalty": -0.8,
    "logit_bias": {3: 2.0, 5: -100.0},
    "bad_words": [[4], [3, 2]],
}


def plugins(target):
    """Return drafters and controllers: a line, a tree, a hierarchy."""
    table = TableDrafter(VOCAB)
    inner = Hierarchy(small_target(str(target.device)), table, Gamma(2))
    return {
        "line": (table, Gamma(3, 1)),
        "tree": (table, Gamma(5, tree=TokenTree((-1, -1, 0, 0, 1)))),
        "hierarchy": (inner, Gamma(3)),
    }


@pytest.mark.parametrize("form", ["line", "tree", "hierarchy"])
def test_a_decoder_with_all_of_them_is_lossless(target, form):
    drafter, gamma = plugins(target)[form]
    sampling = SamplingSettings(temperature=0.9, **OURS)
    decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, strict=True)
    expected = enumerate_continuations(target, sampling)
    assert doubled_p_value(decoder, expected, 1600, 400) > 1e-4


class MinNewTokens:
    """A decoder whose calls have a least length."""

    def __init__(self, decoder):
        self._decoder = decoder

    def generate(self, prompts, settings, observers):
        return self._decoder.generate(prompts, settings, observers, min_new_tokens=LENGTH)


@pytest.mark.parametrize("form", ["line", "hierarchy"])
def test_a_least_length_is_lossless(target, form):
    """Up to the longest text that is enumerated, it is the same as a ban of the end."""
    drafter, gamma = plugins(target)[form]
    decoder = MinNewTokens(Decoder(target, drafter, gamma=gamma, strict=True))
    expected = enumerate_continuations(target, SamplingSettings(bad_words=[[EOS]]))
    assert doubled_p_value(decoder, expected, 1600, 400) > 1e-4


class NewTokenPenalties(LogitsProcessor):
    """The definition of OpenAI's API and vLLM."""

    def __init__(self, begin):
        self.begin = begin

    def __call__(self, input_ids, scores):
        counts = torch.stack([row.bincount(minlength=scores.shape[1]) for row in input_ids[:, self.begin :]])
        return scores - OURS["frequency_penalty"] * counts - OURS["presence_penalty"] * (counts > 0)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_greedy_texts_equal_those_of_generate(family, device):
    model = tiny_model(family, 40).to(device)
    drafter, gamma = TableDrafter(40), Gamma(3, 1)
    decoder = Decoder(wrap_model(model), drafter, gamma=gamma, temperature=0, strict=True, **OURS)
    prompts = [[3, 4, 5, 3, 4], [8, 8]]
    rows = decoder.generate(prompts, max_new_tokens=20, min_new_tokens=9).sequences
    for prompt, row in zip(prompts, rows, strict=True):
        begin = 1 if model.config.is_encoder_decoder else len(prompt)
        ids = torch.tensor([prompt], device=device)
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            min_new_tokens=9,
            sequence_bias={(id_,): bias for id_, bias in OURS["logit_bias"].items()},
            bad_words_ids=OURS["bad_words"],
            logits_processor=LogitsProcessorList([NewTokenPenalties(begin)]),
        )
        assert list(row.tokens) == theirs[0, begin:].tolist()


def test_other_tokens_are_not_biased_by_ids():
    own = LogitsToProbs(with_token_ids(SamplingSettings(**OURS), None, 40))
    logits = torch.randn(2, 3)  # smaller than the ids
    other = own.for_batch([1], None, 5, [EOS]).in_other_tokens()
    torch.testing.assert_close(other(logits), logits.softmax(dim=1))


class Letters:
    """A tokenizer with a token for each letter, and one for a space with a letter."""

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        space, rest = text.startswith(" "), text.lstrip()
        return [ord(letter) - 97 + 26 * (space and not at) for at, letter in enumerate(rest)]


def test_bad_words_are_tokenized_with_and_without_a_space():
    settings = SamplingSettings(bad_words=["ab", " c", (7, 8)])
    words = with_token_ids(settings, Letters(), 60).bad_words
    assert words == ((0, 1), (26, 1), (2,), (28,), (7, 8))


@pytest.mark.parametrize(
    ("sampling", "generation", "message"),
    [
        ({"bad_words": ["word"]}, {}, "bad_words: 'word' was given, but the target has no tokenizer"),
        ({"bad_words": [[3, VOCAB]]}, {}, f"bad_words: token id {VOCAB}"),
        ({"logit_bias": {VOCAB: 1.0}}, {}, f"logit_bias: token id {VOCAB}"),
        ({}, {"min_new_tokens": 5, "max_new_tokens": 4}, r"min_new_tokens: 5 is more than max_new_tokens \(4\)"),
        ({}, {"min_new_tokens": 5, "constraint": {"regex": "a"}}, "a constraint says where a text ends"),
    ],
)
def test_what_is_refused(target, sampling, generation, message):
    with pytest.raises((ConfigError, ArgumentError), match=message):
        Decoder(target, **sampling).generate(list(PROMPT), GenerationSettings(), **generation)
