"""Every form of q, every setting, ragged gammas, early stops and every family give the target's distribution.

Each sample is decoded a few hundred sequences at a time: a step costs much the same for one sequence and for many.
That a sequence does not depend on the batch is tested exactly, token by token, in `test_loop`.
"""

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from tests.lossless import PROMPT, SETTINGS, VOCAB, doubled_p_value, enumerate_continuations, small_target
from tests.pairwise import some
from tests.tiny import FAMILIES
from tests.toys import CandidatesDrafter, CountingDrafter, DrawnDrafter, Gamma, SparseDrafter, TableDrafter

TOYS = {
    "dense": TableDrafter,
    "point-mass": CountingDrafter,
    "sparse": SparseDrafter,
    "candidates": CandidatesDrafter,
    "drawn": DrawnDrafter,
}
COUNT = 4000


def check(decoder, expected, count=COUNT, prompt=PROMPT):
    assert doubled_p_value(decoder, expected, count, count // 4, prompt) > 1e-4


@pytest.mark.parametrize(
    ("toy", "setting"),
    [
        *[("dense", setting) for setting in SETTINGS],
        *[(toy, "top-k-3") for toy in TOYS if toy != "dense"],  # with 25 continuations
        *[pytest.param(toy, "greedy", marks=pytest.mark.slow) for toy in TOYS if toy != "dense"],
    ],
)
def test_every_form_of_q_is_lossless(target, toy, setting):
    sampling = SETTINGS[setting]
    decoder = Decoder(target, TOYS[toy](VOCAB), gamma=Gamma(2, 3, 0, 1), sampling=sampling)
    check(decoder, enumerate_continuations(target, sampling), 400 if sampling.greedy else COUNT)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_lossless(family, device):
    target = small_target(device, family)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(2, 0, 3))
    check(decoder, enumerate_continuations(target, SamplingSettings()), 2000)


@pytest.mark.parametrize("toy", some(TOYS, 1))
def test_repetition_penalty_sees_the_prefix_of_each_draft_position(target, toy):
    # A prompt of one token: whatever else is penalized is part of the draft.
    sampling, prompt = SamplingSettings(repetition_penalty=3.0), (2, 2)
    decoder = Decoder(target, TOYS[toy](VOCAB), gamma=Gamma(2, 3), sampling=sampling)
    check(decoder, enumerate_continuations(target, sampling, prompt), 3000, prompt)


@pytest.mark.parametrize("drafts", [None, SamplingSettings(temperature=0)])
def test_stopping_drafts_by_confidence_stays_lossless(target, drafts):
    gamma = Gamma(3, stop_below=0.4)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, draft_sampling=drafts)
    trace = TraceObserver()
    decoder.generate([[2, 3], [5]], GenerationSettings(max_new_tokens=40, ignore_eos=True), [trace])
    lengths = {n for report in trace.reports for n in report.outcome.drafted}
    assert {1, 3} <= lengths, "no draft was stopped, or all were"
    check(decoder, enumerate_continuations(target, SamplingSettings()))


def test_autoregressive_decoding_is_the_same_loop(target):
    sampling = SETTINGS["temperature-0.7-top-p-0.6"]
    check(Decoder(target, sampling=sampling), enumerate_continuations(target, sampling))


@pytest.mark.parametrize("drafts", [{"temperature": 0.4, "top_k": 2}, {"temperature": 0}])
def test_other_settings_for_the_drafter_stay_lossless(target, drafts):
    sampling = SamplingSettings(temperature=1.3)
    made = {"sampling": sampling, "draft_sampling": SamplingSettings(**drafts)}
    check(Decoder(target, TableDrafter(VOCAB), gamma=Gamma(3), **made), enumerate_continuations(target, sampling))
