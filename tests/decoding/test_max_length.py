"""A drafter with a `max_length` is asked for drafts up to it, never beyond; the output stays the target's."""

from collections import Counter

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import BestFirstTree, TokenTree
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.harness.toys import Hierarchy
from specdec_drafters.chain import ChainDrafter
from specdec_drafters.settings import ChainConfig
from tests.lossless import LENGTH, PROMPT, SETTINGS, VOCAB, enumerate_continuations, p_value, small_target
from tests.pairwise import some
from tests.toys import CountingDrafter, Gamma, TableDrafter

pytestmark = pytest.mark.filterwarnings("ignore:.* takes at most [0-9]* tokens")

LONG = (*PROMPT, 4, 2, 3)
LIMIT = len(PROMPT) + 2
TREES = {"line": None, "tree": TokenTree((-1, -1, 0, 0, 2)), "best-first": BestFirstTree((2, 2, 1))}
"""Shapes of drafts of up to five tokens."""


class Short(TableDrafter):
    """Scores no token beyond its `max_length`."""

    def __init__(self, vocab, max_length=LIMIT):
        super().__init__(vocab)
        self.max_length = max_length
        self.longest = 0

    def logits(self, prefix):
        self.longest = max(self.longest, len(prefix) + 1)
        return super().logits(prefix)


def asked_by_step(decoder, prompts, length):
    trace = TraceObserver()
    settings = GenerationSettings(max_new_tokens=length, ignore_eos=True)
    result = decoder.generate(prompts, settings, [trace])
    return result, [report.asked for report in trace.reports]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("max_length", range(len(PROMPT), len(LONG) + 3))
def test_drafts_end_exactly_at_the_last_legal_position(target, max_length, tree):
    drafter = Short(VOCAB, max_length)
    gamma = Gamma(5, tree=TREES[tree])
    decoder = Decoder(target, drafter, gamma=gamma, strict=True, sampling=SamplingSettings(temperature=0))
    _, asked = asked_by_step(decoder, [PROMPT], 8)
    assert drafter.longest == max_length or (max_length == len(PROMPT) and drafter.longest == 0)
    shape, room = TREES[tree], max_length - len(PROMPT)
    assert asked[0] == ((min(5, room) if shape is None else min(5, sum(shape.widths[:room]))),)


@pytest.mark.parametrize("setting", some(SETTINGS, 2))
def test_output_is_the_targets_beside_a_row_beyond_the_limit(target, setting):
    sampling = SETTINGS[setting]
    drafter = Short(VOCAB)
    decoder = Decoder(target, drafter, gamma=Gamma(3), sampling=sampling, strict=True)
    seen = Counter(), Counter()
    for seed in range(1 if sampling.greedy else 4):
        result = decoder.generate([PROMPT, LONG] * 200, GenerationSettings(max_new_tokens=LENGTH, seed=seed))
        for index, row in enumerate(result.sequences):
            seen[index % 2][row.tokens] += 1
        assert result.metrics.drafted > 0
    for prompt, counts in zip((PROMPT, LONG), seen, strict=True):
        assert p_value(counts, enumerate_continuations(target, sampling, prompt)) > 1e-4
    assert drafter.longest == LIMIT


def test_a_row_beyond_the_limit_does_not_change_its_neighbor(target):
    sampling = SamplingSettings(temperature=1)
    decoder = Decoder(target, Short(VOCAB), gamma=Gamma(3), sampling=sampling, strict=True)
    alone, _ = asked_by_step(decoder, [PROMPT], 8)
    both, asked = asked_by_step(decoder, [PROMPT, LONG], 8)
    assert both.sequences[0].tokens == alone.sequences[0].tokens
    assert [row[1] for row in asked] == [0] * len(asked)


def test_the_result_says_once_that_a_text_is_too_long(target):
    short = Short(VOCAB, 8)
    members = ChainConfig(drafters=(short, CountingDrafter(VOCAB)))
    for drafter in (short, ChainDrafter(members, short.target), Hierarchy(target, short, Gamma(2))):
        decoder = Decoder(target, drafter, gamma=Gamma(3), strict=True)
        result, _ = asked_by_step(decoder, [PROMPT] * 2, 8)
        assert result.notes == ("Short takes at most 8 tokens: in longer texts it drafts nothing.",)
        assert asked_by_step(decoder, [PROMPT], 8 - len(PROMPT))[0].notes == ()


def test_a_chain_asks_each_member_for_what_it_can_draft(target):
    short = Short(VOCAB)
    chain = ChainDrafter(ChainConfig(drafters=(short, CountingDrafter(VOCAB))), short.target)
    assert chain.max_length is None
    decoder = Decoder(target, chain, gamma=Gamma(3), strict=True)
    result, asked = asked_by_step(decoder, [PROMPT, LONG], 8)
    assert result.metrics.drafted > 0
    assert asked[0] == (3, 3)
    assert short.longest == LIMIT
    both = ChainDrafter(ChainConfig(drafters=(short, Short(VOCAB, LIMIT - 1))), short.target)
    assert both.max_length == LIMIT


def test_a_drafter_below_another_is_asked_for_what_it_can_draft(target):
    short = Short(VOCAB)
    hierarchy = Hierarchy(small_target(target.device), short, Gamma(2))
    decoder = Decoder(target, hierarchy, gamma=Gamma(3), strict=True)
    asked_by_step(decoder, [PROMPT, LONG], 8)
    assert short.longest == LIMIT
