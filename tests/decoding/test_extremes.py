"""Settings at the ends of their ranges, and beyond."""

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.errors import NumericsError
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, TableDrafter

V = 40
PROMPTS = ([3, 4, 5], [7, 8])


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


def texts(decoder, prompts=PROMPTS, **options):
    result = decoder.generate(prompts, **{"max_new_tokens": 8, "ignore_eos": True, **options})
    assert not result.failures
    return [row.tokens for row in result.sequences]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-6},
        {"temperature": 1e-30},
        {"top_p": 1e-9},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 1e-6, "top_p": 1e-9, "top_k": 10**6, "min_p": 1.0},
    ],
)
def test_sampling_that_leaves_one_token_is_greedy(target, sampling):
    greedy = texts(Decoder(target, temperature=0))
    assert texts(Decoder(target, **sampling)) == greedy
    assert texts(Decoder(target, TableDrafter(V), gamma=3, **sampling)) == greedy


def test_sampling_that_leaves_every_token_changes_nothing(target):
    for drafter, gamma in ((None, None), (TableDrafter(V), 3)):
        plain = texts(Decoder(target, drafter, gamma=gamma))
        assert texts(Decoder(target, drafter, gamma=gamma, top_k=10**6, min_p=1e-30)) == plain


def test_a_temperature_too_small_for_the_logits_is_named(target):
    with pytest.raises(NumericsError, match="a temperature close to 0"):
        texts(Decoder(target, temperature=1e-300))


@pytest.mark.parametrize("drafter", [CountingDrafter(V), TableDrafter(V)])
@pytest.mark.parametrize("gamma", [0, 300, 1000])
def test_gamma_may_be_0_or_beyond_the_context(target, drafter, gamma):
    assert texts(Decoder(target, drafter, gamma=gamma, temperature=0)) == texts(Decoder(target, temperature=0))
    assert texts(Decoder(target, drafter, gamma=gamma))


@pytest.mark.parametrize("bit", [0, 31, 32, 33, 48, 63])
def test_every_bit_of_a_seed_counts(target, bit):
    decoder = Decoder(target)
    assert texts(decoder, seeds=[5, 6]) != texts(decoder, seeds=[5 ^ (1 << bit), 6])


@pytest.mark.parametrize("seeds", [[1, 2**64], [1, -1], [1, 0.5], ["1", "2"]])
def test_seeds_beyond_64_bits_are_refused(target, seeds):
    with pytest.raises(ConfigError, match="a seed is a whole number from 0 to"):
        texts(Decoder(target), seeds=seeds)


def test_one_new_token_and_a_thousand_rows(target):
    prompts = [[3 + row % 30, 4] for row in range(1000)]
    decoder = Decoder(target, TableDrafter(V), gamma=3, temperature=0)
    few = texts(decoder, prompts[:30], max_new_tokens=1)
    assert texts(decoder, prompts, max_new_tokens=1) == (few * 34)[:1000]
