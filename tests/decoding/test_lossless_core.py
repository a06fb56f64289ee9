"""Every form of q, every setting, ragged gammas, early stops and every family give the target's distribution."""

from __future__ import annotations

import pytest

from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.settings import GenerationSettings, SamplingSettings
from tests.lossless import SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.tiny import FAMILIES
from tests.toys import CountingDrafter, Gamma, SparseDrafter, TableDrafter

TOYS = {"dense": TableDrafter, "point-mass": CountingDrafter, "sparse": SparseDrafter}


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("toy", TOYS)
def test_every_form_of_q_is_lossless(target, toy, setting, batch):
    sampling = SETTINGS[setting]
    decoder = Decoder(target, TOYS[toy](VOCAB), gamma=Gamma(2, 1, 3, 0), sampling=sampling)
    count = 30 if sampling.argmax else 900
    assert p_value(sample(decoder, batch, count), enumerate_continuations(target, sampling)) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_lossless(family, device):
    target = small_target(device, family)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(2, 0, 3))
    expected = enumerate_continuations(target, SamplingSettings())
    assert p_value(sample(decoder, 5, 600), expected) > 1e-4


def test_other_settings_for_the_drafter_stay_lossless(target):
    sampling, drafts = SamplingSettings(temperature=1.3), SamplingSettings(temperature=0.4, top_k=2)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(3), sampling=sampling, draft_sampling=drafts)
    assert p_value(sample(decoder, 3, 1200), enumerate_continuations(target, sampling)) > 1e-4


def test_argmax_drafts_for_a_sampling_target_stay_lossless(target):
    drafts = SamplingSettings(temperature=0)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(3), draft_sampling=drafts)
    assert p_value(sample(decoder, 3, 1200), enumerate_continuations(target, SamplingSettings())) > 1e-4


@pytest.mark.parametrize("toy", TOYS)
def test_repetition_penalty_sees_the_prefix_of_each_draft_position(target, toy):
    # A prompt of one token: whatever else is penalised stands in the draft.
    sampling, prompt = SamplingSettings(repetition_penalty=3.0), (2, 2)
    decoder = Decoder(target, TOYS[toy](VOCAB), gamma=Gamma(2, 3), sampling=sampling)
    expected = enumerate_continuations(target, sampling, prompt)
    assert p_value(sample(decoder, 3, 900, prompt), expected) > 1e-4


@pytest.mark.parametrize("drafts", [None, SamplingSettings(temperature=0)])
def test_stopping_drafts_by_confidence_stays_lossless(target, drafts):
    gamma = Gamma(3, stop_below=0.4)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, draft_sampling=drafts)
    trace = TraceObserver()
    decoder.generate([[2, 3], [5]], GenerationSettings(max_new_tokens=40, ignore_eos=True), [trace])
    lengths = {n for report in trace.reports for n in report.drafted}
    assert {1, 3} <= lengths, "no draft was stopped, or all were"
    assert p_value(sample(decoder, 3, 900), enumerate_continuations(target, SamplingSettings())) > 1e-4


def test_plain_decoding_is_the_same_loop(target):
    sampling = SETTINGS["temperature-0.7-top-p-0.9"]
    assert (
        p_value(sample(Decoder(target, sampling=sampling), 3, 900), enumerate_continuations(target, sampling))
        > 1e-4
    )
