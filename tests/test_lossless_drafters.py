"""Every drafter that ships x every kind of sampling x batch 1 and 3 gives the target's distribution."""

from __future__ import annotations

import pytest

from specdec_core import default_registry
from specdec_core.decoding import Decoder
from specdec_core.settings import SamplingSettings
from tests.lossless import SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.tiny import tiny_model

ARPA = r"""\data\
ngram 1=9
ngram 2=8
ngram 3=3

\1-grams:
-99 <s> -0.1
-1.2 </s>
-1.5 <unk>
-0.9 0 -0.2
-1.1 1 -0.1
-0.6 2 -0.4
-0.5 3 -0.3
-1.0 4
-0.8 5 -0.2

\2-grams:
-0.3 2 3 -0.2
-0.5 3 5 -0.3
-0.6 3 2
-0.4 5 2 -0.1
-0.9 5 4
-0.7 0 3
-0.2 1 0
-0.8 2 2

\3-grams:
-0.4 2 3 5
-0.3 3 5 2
-0.9 5 2 2

\end\
"""


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafters")
    (folder / "ids.arpa").write_text(ARPA)
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder / "small")
    ngram = {"arpa": folder / "ids.arpa"}
    return {
        "transformer": ("transformer", {"model": str(folder / "small")}),
        "unigram": ("ngram", {**ngram, "order": 1}),
        "bigram": ("ngram", {**ngram, "order": 2}),
        "trigram": ("ngram", {**ngram, "order": 3}),
        "prompt-copy": ("prompt-copy", {"min_match": 1}),
        "random": ("random", {}),
    }


def make(target, name, values, gamma):
    registry = default_registry()
    drafter = registry.create("drafter", name, registry.spec("drafter", name).config(**values), target.info())
    controller = registry.create("gamma", "fixed", registry.spec("gamma", "fixed").config(gamma=gamma))
    return drafter, controller


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("who", ["transformer", "unigram", "bigram", "trigram", "prompt-copy", "random"])
def test_drafter_gives_the_targets_distribution(target, settings_of, who, setting, batch):
    drafter, gamma = make(target, *settings_of[who], gamma=2)
    sampling = SETTINGS[setting]
    decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, strict=True)
    count = 30 if sampling.argmax else 900
    assert p_value(sample(decoder, batch, count), enumerate_continuations(target, sampling)) > 1e-4


@pytest.mark.parametrize("who", ["unigram", "bigram", "trigram"])
def test_drafts_at_a_temperature_alone_are_lossless_too(target, settings_of, who):
    """Where nothing but a temperature is applied, tables are drawn from without a row of V numbers."""
    drafter, gamma = make(target, *settings_of[who], gamma=3)
    sampling = SamplingSettings(temperature=0.5)
    decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, strict=True)
    assert p_value(sample(decoder, 3, 1500), enumerate_continuations(target, sampling)) > 1e-4


@pytest.mark.parametrize("who", ["transformer", "bigram", "prompt-copy", "random"])
def test_a_row_does_not_depend_on_its_neighbours(target, settings_of, who):
    from specdec_core.settings import GenerationSettings

    drafter, gamma = make(target, *settings_of[who], gamma=3)
    decoder = Decoder(target, drafter, gamma=gamma, strict=True)
    settings = GenerationSettings(max_new_tokens=12, seed=4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    alone = decoder.generate([first], settings).rows[0].tokens
    for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]]):
        assert decoder.generate([first, *others], settings).rows[0].tokens == alone
    assert decoder.generate([first], settings).rows[0].tokens == alone
