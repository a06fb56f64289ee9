"""Heads that guess badly give the target's distribution: all settings, batch 1 and 3, both kinds of target."""

from __future__ import annotations

import pytest
import torch

from specdec_core.decoding import Decoder
from specdec_core.settings import GenerationSettings
from specdec_drafters.configs import HeadsConfig
from specdec_drafters.heads.drafter import HeadsDrafter
from specdec_drafters.heads.file import HeadsCard, write_heads
from specdec_drafters.heads.model import Heads, HeadsShape
from tests import lossless
from tests.lossless import SETTINGS, enumerate_continuations, p_value, sample, small_target
from tests.toys import Gamma

# The first token comes without a draft, as the target has read nothing yet, and the last one is never drafted: so
# many are needed for two heads to be judged.
LENGTH = 4


@pytest.fixture(scope="module")
def pairs(device, tmp_path_factory):
    """Return a small target and random heads for it."""
    made = {}

    def pairs(family, reads_token=True):
        if (family, reads_token) not in made:
            target = small_target(device, family)
            features = target.info().features
            shape = HeadsShape(3, features.hidden_size, 8, features.hidden_size if reads_token else 0)
            heads = Heads(shape)
            generator = torch.Generator().manual_seed(2)
            with torch.no_grad():
                for weight in heads.parameters():
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
            path = tmp_path_factory.mktemp("heads") / "heads.safetensors"
            write_heads(path, heads, HeadsCard(shape, target.vocab_size, family, features.fingerprint()))
            made[family, reads_token] = target, HeadsDrafter(HeadsConfig(model=str(path)), target.info())
        return made[family, reads_token]

    return pairs


@pytest.fixture(scope="module")
def expected(pairs):
    """Return the exact distribution of a target's continuations, enumerated once."""
    known = {}

    def expected(family, setting):
        if (family, setting) not in known:
            known[family, setting] = enumerate_continuations(pairs(family)[0], SETTINGS[setting])
        return known[family, setting]

    return expected


@pytest.fixture(autouse=True, scope="module")
def _longer():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lossless, "LENGTH", LENGTH)
        yield


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_heads_give_the_targets_distribution(pairs, expected, family, setting, batch):
    target, drafter = pairs(family)
    sampling = SETTINGS[setting]
    decoder = Decoder(target, drafter, gamma=Gamma(2, 3), sampling=sampling, strict=True)
    count = 30 if sampling.argmax else 300 + 200 * batch
    assert p_value(sample(decoder, batch, count), expected(family, setting)) > 1e-4


@pytest.mark.parametrize("setting", ["temperature-1", "temperature-0.7-top-p-0.9", "top-k-3"])
def test_heads_give_the_targets_distribution_in_a_large_sample(pairs, expected, setting):
    """With four tokens there are many outcomes; a q that is a little wrong needs this many to show."""
    target, drafter = pairs("gpt2")
    decoder = Decoder(target, drafter, gamma=Gamma(2, 3), sampling=SETTINGS[setting], strict=True)
    assert p_value(sample(decoder, 60, 9000), expected("gpt2", setting)) > 1e-4


def test_heads_that_read_no_token(pairs, expected):
    target, drafter = pairs("gpt2", reads_token=False)
    decoder = Decoder(target, drafter, gamma=Gamma(2), sampling=SETTINGS["temperature-1"], strict=True)
    assert p_value(sample(decoder, 60, 9000), expected("gpt2", "temperature-1")) > 1e-4


@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("setting", ["argmax", "temperature-1"])
def test_a_row_does_not_depend_on_its_neighbours(pairs, family, setting):
    target, drafter = pairs(family)
    decoder = Decoder(target, drafter, gamma=Gamma(3), sampling=SETTINGS[setting], strict=True)
    settings = GenerationSettings(max_new_tokens=12, seed=4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    alone = decoder.generate([first], settings).rows[0].tokens
    for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]]):
        assert decoder.generate([first, *others], settings).rows[0].tokens == alone
