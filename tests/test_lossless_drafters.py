"""Every drafter that ships x every kind of sampling x batch 1 and 3 gives the target's distribution.

Small samples go through every path; a large one of each drafter, with drafts of up to three tokens, is what shows
a q or a residual that is a little wrong.
"""

from __future__ import annotations

import functools

import pytest
import torch

from specdec_core import default_registry
from specdec_core.decoding import Decoder
from specdec_core.settings import GenerationSettings
from specdec_drafters.heads.file import HeadsCard, write_heads
from specdec_drafters.heads.model import Heads, HeadsShape
from tests.lossless import SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.tiny import tiny_model
from tests.toys import Gamma

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


def write_random_heads(path, target):
    features = target.info().features
    shape = HeadsShape(3, features.hidden_size, 8, features.hidden_size)
    heads = Heads(shape)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    write_heads(path, heads, HeadsCard(shape, target.vocab_size, "gpt2", features.fingerprint()))


@pytest.fixture(scope="module")
def make(target, tmp_path_factory):
    """Return a function that makes a drafter of the catalogue below, once."""
    folder = tmp_path_factory.mktemp("drafters")
    (folder / "ids.arpa").write_text(ARPA)
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder / "small")
    write_random_heads(folder / "heads.safetensors", target)
    places = {"arpa": folder / "ids.arpa", "model": str(folder / "small")}
    heads = {"model": str(folder / "heads.safetensors")}
    registry = default_registry()
    made = {}

    def make(who):
        if who not in made:
            name, settings = CATALOGUE[who]
            settings = {key: written(value) for key, value in settings.items()}
            needed = {"ngram": ("arpa",), "transformer": ("model",), "hierarchical": ("model",)}.get(name, ())
            settings |= heads if name == "heads" else {key: places[key] for key in needed}
            made[who] = registry.create("drafter", name, registry.spec("drafter", name).config(**settings), info)
        return made[who]

    def written(value):
        if isinstance(value, tuple):
            return tuple(map(written, value))
        return make(value) if isinstance(value, str) and value in CATALOGUE else value

    info = target.info()
    return make


CATALOGUE = {
    "random": ("random", {}),
    "unigram": ("ngram", {"order": 1}),
    "bigram": ("ngram", {"order": 2}),
    "trigram": ("ngram", {"order": 3}),
    "copy-recent": ("prompt-copy", {"min_match": 1}),
    "copy-frequent": ("prompt-copy", {"min_match": 1, "prefer": "frequent"}),
    "transformer": ("transformer", {}),
    "heads": ("heads", {}),
    "copy-long": ("prompt-copy", {"min_match": 2, "max_tokens": 2}),
    "chain": ("chain", {"drafters": ("copy-long", "bigram"), "shortest": 2}),
    "hierarchy-bigram": ("hierarchical", {"drafter": "bigram", "gamma": Gamma(2)}),
    "hierarchy-chain": ("hierarchical", {"drafter": "chain", "gamma": Gamma(2)}),
}
DRAFTERS = [who for who in CATALOGUE if who != "copy-long"]
SLOW = ("transformer", "hierarchy-bigram", "hierarchy-chain")


@pytest.fixture(scope="module")
def expected(target):
    """Return the exact distribution of continuations, enumerated once."""
    return functools.cache(
        lambda setting, length: enumerate_continuations(target, SETTINGS[setting], length=length)
    )


def check(target, drafter, gamma, expected, setting, batch, count, length):
    decoder = Decoder(target, drafter, gamma=gamma, sampling=SETTINGS[setting], strict=True)
    assert p_value(sample(decoder, batch, count, length=length), expected(setting, length)) > 1e-4


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution(target, make, expected, who, setting, batch):
    count = 15 if SETTINGS[setting].argmax else (30 if who in SLOW else 60) * batch
    check(target, make(who), Gamma(2), expected, setting, batch, count, 3)


STRONG = ("temperature-0.7-top-p-0.9", "top-k-3", "temperature-0.7")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution_in_a_large_sample(target, make, expected, who, which):
    """At temperature 1, and with one other setting, another for each drafter."""
    setting = STRONG[DRAFTERS.index(who) % len(STRONG)] if which else "temperature-1"
    check(target, make(who), Gamma(3, 2), expected, setting, 100, 9000, 4)


@pytest.mark.parametrize("who", DRAFTERS)
def test_a_row_does_not_depend_on_its_neighbours(target, make, who):
    decoder = Decoder(target, make(who), gamma=Gamma(3), strict=True)
    settings = GenerationSettings(max_new_tokens=12, seed=4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    alone = decoder.generate([first], settings).rows[0].tokens
    for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]]):
        assert decoder.generate([first, *others], settings).rows[0].tokens == alone
    assert decoder.generate([first], settings).rows[0].tokens == alone
