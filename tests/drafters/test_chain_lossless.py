"""The chain in the decoding loop: whoever drafted, the text is the target's."""

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_drafters import chain as chain_module
from tests.drafters.chains import chain
from tests.lossless import VOCAB, doubled_p_value, enumerate_continuations, p_value, sample
from tests.toys import CountingDrafter, Gamma, TableDrafter


def test_argmax_drafts_of_a_model_may_be_replaced_for_a_sampling_target(target):
    sampling, drafts = SamplingSettings(), SamplingSettings(temperature=0)
    drafter = chain(TableDrafter(VOCAB), CountingDrafter(VOCAB), vocab=VOCAB, min_draft_tokens=2)
    gamma = Gamma(2, 3, stop_below=0.6)
    decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, draft_sampling=drafts, strict=True)
    assert p_value(sample(decoder, 600, 1200), enumerate_continuations(target, sampling)) > 1e-4


def stopped_early(target):
    """A sampled draft that a confidence controller stops, before a drafter that always has three tokens."""
    drafter = chain(TableDrafter(VOCAB), CountingDrafter(VOCAB), vocab=VOCAB, min_draft_tokens=2)
    return Decoder(target, drafter, gamma=Gamma(2, stop_below=0.4), strict=True)


def test_sampled_drafts_are_never_chosen_by_their_length(target):
    decoder = stopped_early(target)
    trace = TraceObserver()
    decoder.generate([[2, 3], [5]], GenerationSettings(max_new_tokens=40, ignore_eos=True), [trace])
    lengths = {n for report in trace.reports for n in report.outcome.drafted}
    assert {1, 2} <= lengths, "no draft was stopped, or all were"
    assert doubled_p_value(decoder, enumerate_continuations(target, SamplingSettings()), 4800) > 1e-4


def test_choosing_sampled_drafts_by_their_length_would_be_seen(target, monkeypatch):
    # What the test before this one is for: were stopped drafts replaced, the text would not be the target's.
    monkeypatch.setattr(chain_module, "_replaceable", lambda _, proposal: [True] * len(proposal.lengths))
    seen = sample(stopped_early(target), 600, 3000)
    assert p_value(seen, enumerate_continuations(target, SamplingSettings())) < 1e-6
