"""Drafters that keep knowledge between requests: what is declared, forwarded, learnt and forgotten."""

from dataclasses import replace

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import PluginConfig, TargetInfo
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from specdec_core.testing.harness.toys import Hierarchy
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.settings import HierarchicalConfig, TranslatedConfig
from specdec_drafters.translated.drafter import TranslatedDrafter
from tests.drafters.chains import chain
from tests.lossless import VOCAB
from tests.spelled import target_tokenizer
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, Noting, RememberingDrafter

SETTINGS = GenerationSettings(max_new_tokens=16, ignore_eos=True)
GREEDY = SamplingSettings(temperature=0)
PROMPT = [2, 3, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder)
    return folder


def _hierarchical(inner, target, folder):
    made = {"drafter": inner, "gamma": Gamma(2)}
    info = replace(target.info(), build=lambda kind, _config, _target: made[kind])
    config = HierarchicalConfig(model=str(folder), drafter=PluginConfig(), gamma=PluginConfig())
    return HierarchicalDrafter(config, info)


def _translated(inner, target, _folder):
    info = TargetInfo(VOCAB, target.eos_ids, target.device, target_tokenizer())
    inner.target = info
    return TranslatedDrafter(TranslatedConfig(drafter=inner), info)


WRAPPERS = {
    "chain": lambda inner, *_: chain(inner, CountingDrafter(VOCAB), vocab=VOCAB),
    "chain in chain": lambda inner, *_: chain(chain(inner, vocab=VOCAB), CountingDrafter(VOCAB), vocab=VOCAB),
    "hierarchical": _hierarchical,
    "translated": _translated,
    "hierarchy of the kit": lambda inner, _, folder: Hierarchy(
        wrap_model(tiny_model("llama", VOCAB, seed=5)), inner, Gamma(2)
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_around_a_remembering_drafter_remembers_and_resets_it(target, folder, wrapper):
    inner = RememberingDrafter(VOCAB)
    inner.learn([[1, 2]])
    around = WRAPPERS[wrapper](inner, target, folder)
    assert around.remembers
    around.reset()
    assert inner.known == {}
    assert not WRAPPERS[wrapper](CountingDrafter(VOCAB), target, folder).remembers


@pytest.mark.parametrize("wrapper", [None, *WRAPPERS])
def test_a_request_teaches_the_next_until_a_reset(target, folder, wrapper):
    drafter = inner = RememberingDrafter(VOCAB)
    if wrapper is not None:
        drafter = WRAPPERS[wrapper](inner, target, folder)
    decoder = Decoder(target, drafter, gamma=Gamma(3), sampling=GREEDY, strict=True)
    first = decoder.generate(PROMPT, SETTINGS)
    assert inner.known
    second = decoder.generate(PROMPT, SETTINGS)
    drafter.reset()
    assert inner.known == {}
    third = decoder.generate(PROMPT, SETTINGS)
    assert first.tokens == second.tokens == third.tokens
    assert first.metrics.without_times() == third.metrics.without_times()
    if wrapper is None:
        assert second.metrics.target_calls < first.metrics.target_calls


def test_a_batch_learns_prompts_and_outputs_when_it_is_closed(target):
    drafter = RememberingDrafter(VOCAB)
    result = Decoder(target, drafter, gamma=Gamma(2), sampling=GREEDY, strict=True).generate(
        [PROMPT, [4, 1]], SETTINGS
    )
    rows = [[*prompt, *one.tokens] for prompt, one in zip([PROMPT, [4, 1]], result.sequences, strict=True)]
    other = RememberingDrafter(VOCAB)
    other.learn(rows)
    assert drafter.known == other.known


def test_other_drafters_have_nothing_to_forget():
    drafter = CountingDrafter(VOCAB)
    assert not drafter.remembers
    drafter.reset()
    assert drafter.config is NO_CONFIG


@pytest.mark.parametrize("wrapper", ["chain in chain", "hierarchical", "translated"])
def test_drafters_around_others_hand_metadata_down(target, folder, wrapper):
    inner = Noting(VOCAB)
    decoder = Decoder(target, WRAPPERS[wrapper](inner, target, folder), gamma=2, temperature=0, strict=True)
    decoder.generate(PROMPT, max_new_tokens=4, metadata=[{"user": "ann"}])
    assert inner.seen == [[{"user": "ann"}]]
