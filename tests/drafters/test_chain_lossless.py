"""The chain in the decoding loop: whoever drafted, the text is the target's."""

from __future__ import annotations

import pytest

from specdec_core import default_registry
from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.decoding.request import DraftRecorder
from specdec_core.interface import Outcome
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_drafters import chain as chain_module
from tests.drafters.chains import chain
from tests.drafters.support import info_for, rows_of
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations, p_value, sample, small_target
from tests.pairwise import pairwise
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, SparseDrafter, TableDrafter


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


class Now(CountingDrafter):
    """Guesses only after even tokens, and then one token or three: rows often fall through."""

    def draft(self, tokens, budget):
        return () if tokens[-1] % 2 else super().draft(tokens, budget)[: 1 + tokens[-1] % 4]


MEMBERS = {
    "point": lambda: Now(VOCAB),
    "sparse": lambda: SparseDrafter(VOCAB),
    "dense": lambda: TableDrafter(VOCAB),
}
TOYS = {
    "point-dense": lambda: (Now(VOCAB), TableDrafter(VOCAB)),
    "point-sparse": lambda: (Now(VOCAB), SparseDrafter(VOCAB)),
    "sparse-dense": lambda: (SparseDrafter(VOCAB), TableDrafter(VOCAB)),
    "dense-point": lambda: (TableDrafter(VOCAB), CountingDrafter(VOCAB)),
    "nested": lambda: (chain(Now(VOCAB), vocab=VOCAB), chain(Now(VOCAB), TableDrafter(VOCAB), vocab=VOCAB)),
}


PENALTY = SamplingSettings(repetition_penalty=3.0)
WAYS = {
    **{name: (sampling, None, Gamma(2, 1, 3, 0)) for name, sampling in SETTINGS.items()},
    "penalty": (PENALTY, None, Gamma(2, 3)),
    "draft temperature 0.5": (SamplingSettings(), SamplingSettings(temperature=0.5), Gamma(2, 3)),
    "stopped by confidence": (PENALTY, None, Gamma(3, stop_below=0.3)),
}


def check_lossless(target, drafter, way, count):
    sampling, drafts, gamma = WAYS[way]
    decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, draft_sampling=drafts, strict=True)
    expected = enumerate_continuations(target, sampling, (2, 2))
    assert doubled_p_value(decoder, expected, count, prompt=(2, 2)) > 1e-4


@pytest.mark.parametrize(
    ("who", "way"),
    [
        ("point-dense", "temperature-1"),
        ("point-sparse", "top-k-3"),
        ("sparse-dense", "penalty"),
        ("dense-point", "stopped by confidence"),
        ("nested", "temperature-0.7-top-p-0.6"),
    ],
)
def test_every_mixture_of_forms_is_lossless(target, who, way):
    check_lossless(target, chain(*TOYS[who](), vocab=VOCAB, min_draft_tokens=2), way, 3200)


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


ARPA = r"""\data\
ngram 1=8
ngram 2=4

\1-grams:
-99 <s> -0.1
-1.2 </s>
-1.5 <unk>
-0.9 0 -0.2
-0.6 2 -0.4
-0.5 3 -0.3
-1.0 4
-0.8 5 -0.2

\2-grams:
-0.3 2 3
-0.5 3 5
-0.4 5 2
-0.7 0 3

\end\
"""


@pytest.fixture(scope="module")
def members(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder / "small")
    (folder / "ids.arpa").write_text(ARPA)
    registry = default_registry()

    def make(name, **settings):
        return registry.create("drafter", name, registry.spec("drafter", name).config(**settings), target.info())

    return {
        "prompt-copy": lambda: make("prompt-copy", min_match=1, max_tokens=2),
        "bigram": lambda: make("ngram", arpa=folder / "ids.arpa", order=2),
        "transformer": lambda: make("transformer", model=str(folder / "small")),
    }


SHIPPED = {
    "prompt-copy, bigram": (1, ("prompt-copy", "bigram")),
    "prompt-copy of 2 or more, transformer": (2, ("prompt-copy", "transformer")),
    "bigram, transformer": (1, ("bigram", "transformer")),
}


def shipped(members, who):
    min_draft_tokens, names = SHIPPED[who]
    return chain(*(members[name]() for name in names), vocab=VOCAB, min_draft_tokens=min_draft_tokens)


def test_drafters_that_ship_are_lossless_in_a_chain(target, members):
    check_lossless(target, shipped(members, "bigram, transformer"), "stopped by confidence", 4800)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "way"), pairwise(MEMBERS, MEMBERS, WAYS))
def test_a_chain_is_lossless_in_every_way(target, first, second, way):
    drafter = chain(MEMBERS[first](), MEMBERS[second](), vocab=VOCAB, min_draft_tokens=2)
    check_lossless(target, drafter, way, 9600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "way"), [*zip(SHIPPED, ["temperature-0.7-top-p-0.6", "penalty", "draft temperature 0.5"], strict=True)]
)
def test_drafters_that_ship_are_lossless_in_a_chain_in_a_large_sample(target, members, who, way):
    check_lossless(target, shipped(members, who), way, 9600)


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=0)])
@pytest.mark.parametrize("who", [*SHIPPED, "point-dense", "dense-point", "nested"])
def test_a_row_does_not_depend_on_its_neighbors(target, members, who, sampling):
    toys = who in TOYS
    drafter = chain(*TOYS[who](), vocab=VOCAB, min_draft_tokens=2) if toys else shipped(members, who)
    decoder = Decoder(target, drafter, gamma=Gamma(3), sampling=sampling, strict=True)
    settings = GenerationSettings(max_new_tokens=16, seed=4, ignore_eos=True)
    first = [2, 3, 5, 2, 3]
    alone = decoder.generate([first], settings).sequences[0].tokens
    for others in ([[2]], [[5, 5, 5, 4, 3, 2, 0, 2, 3], [0, 3]]):
        assert decoder.generate([first, *others], settings).sequences[0].tokens == alone


def test_a_chain_of_stateful_drafters_proposes_as_a_fresh_one(target, members):
    drafter = chain(members["prompt-copy"](), members["transformer"](), vocab=VOCAB)
    info = info_for(2, VOCAB)
    sampling = SamplingSettings(temperature=0)
    session = drafter.open(info)
    tokens = [[2, 3, 5, 2], [4, 1]]
    for step in range(8):
        proposal = session.propose(request_of(tokens, sampling))
        kept = [min((step + row) % 3, length) for row, length in enumerate(proposal.lengths)]
        new = [
            (*draft[:n], (step * 2 + row) % VOCAB)
            for row, (draft, n) in enumerate(zip(rows_of(proposal), kept, strict=True))
        ]
        for row, more in zip(tokens, new, strict=True):
            row.extend(more)
        session.commit(Outcome(proposal.lengths, tuple(kept), tuple(new), (False, False)))
        fresh = drafter.open(info).propose(request_of(tokens, sampling))
        assert rows_of(session.propose(request_of(tokens, sampling))) == rows_of(fresh)


def request_of(tokens, sampling):
    recorder = DraftRecorder(LogitsToProbs(sampling), RowGenerators([0, 1]), 2, VOCAB, 3, "cpu")
    recorder.start(tokens, (3, 3))
    return recorder
