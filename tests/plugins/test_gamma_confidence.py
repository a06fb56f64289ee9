"""Confidence: where drafts end, and what a row learns of it."""

import math

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_drafters.chain import ChainDrafter
from specdec_drafters.prompt_copy import PromptCopyDrafter
from specdec_drafters.settings import ChainConfig, PromptCopyConfig
from specdec_plugins.gamma.confidence import ConfidenceGamma, ConfidenceGammaConfig, LearnedThreshold
from tests.lossless import VOCAB, small_target
from tests.pairwise import pairwise, some
from tests.plugins.gamma_simulation import batch_info, decode, report
from tests.toys import TableDrafter


def opened(rows=1, **settings):
    controller = ConfidenceGamma(ConfidenceGammaConfig(**settings))
    return controller.open(batch_info(controller, rows))


@pytest.mark.parametrize("learn", [False, True])
def test_a_draft_ends_behind_a_token_below_the_threshold(learn):
    session = opened(rows=3, threshold=0.5, max_gamma=7, learn=learn)
    assert session.uses_confidence
    assert list(session.plan()) == [7, 7, 7]
    assert list(session.keep_drafting([0.51, 0.49, 0.5])) == [True, False, True]
    assert list(session.keep_drafting([0.2, math.nan, 1.0])) == [False, False, True]


def test_a_fixed_threshold_stays():
    session = opened(threshold=0.3)
    decode(session, 50, lambda _: 0.0, confidence=lambda chance: chance.random())
    assert list(session.keep_drafting([0.3])) == [True]
    assert list(session.keep_drafting([0.29])) == [False]


# How a token's acceptance depends on its confidence, and how confident the drafter is.
ACCEPTANCE = {
    "honest": lambda q: q,
    "overconfident": lambda q: q**2.5,
    "modest": lambda q: q**0.3,
    "blind": lambda _: 0.7,
}
CONFIDENCE = {"even": lambda chance: chance.random(), "mostly sure": lambda chance: chance.random() ** 0.3}


@pytest.mark.parametrize(("c", "acceptance", "confidence"), some(pairwise([0.05, 0.2], ACCEPTANCE, CONFIDENCE), 3))
def test_what_is_learnt_is_as_good_as_the_best_fixed_threshold(c, acceptance, confidence):
    def speed(**settings):
        courses = (
            decode(opened(**settings), 120, ACCEPTANCE[acceptance], confidence=CONFIDENCE[confidence], seed=seed)
            for seed in range(8)
        )
        return sum(course.tokens_per_time(c) for course in courses) / 8

    best = max(speed(threshold=tenth / 10) for tenth in range(10))
    for begun in (0.1, 0.8):
        # From the first step on, what is to be learnt included.
        assert speed(threshold=begun, learn=True, c=c) > 0.9 * best


def test_where_confidence_says_nothing_drafts_end_by_their_length():
    # alpha = 0.7 at c = 0.05: behind n tokens a further one pays while 0.7^(n + 1) > 0.05 S, so up to some 6
    # tokens.
    session = opened(learn=True, threshold=0.1)
    lengths = decode(session, 400, lambda _: 0.7, confidence=lambda _: 0.55).drafted[100:]
    assert 4 < sum(lengths) / len(lengths) < 7


def test_the_rule_by_hand():
    row = LearnedThreshold(0.5, 0.1, 0.0)
    assert [row.keep_drafting(q) for q in (0.9, 0.6)] == [True, True]
    row.learn(2, 2, 1)
    # S = 2 tokens in 1.2 calls, alpha = 1 / 2, so that a further token must be of use with 0.1 * 2 / 1.2 / 0.5 = 1
    # / 3.
    row.begin()
    assert row.keep_drafting(0.95)  # tokens in the nineties were accepted, one of one
    assert not row.keep_drafting(0.65)  # those in the sixties were not
    assert not row.keep_drafting(0.95)  # whatever comes behind


def test_what_was_not_judged_is_not_learnt_from():
    # Of four tokens the second is rejected; the confidence of the two behind says nothing.
    one, other = (LearnedThreshold(0.5, 0.1, 0.9) for _ in range(2))
    for row, behind in ((one, (0.9, 0.9)), (other, (0.6, 0.6))):
        for q in (0.8, 0.7, *behind):
            row.keep_drafting(q)
        row.learn(4, 2, 1)
        row.begin()
    probes = [0.05 + tenth / 10 for tenth in range(10)]
    assert [one.keep_drafting(q) for q in probes] == [other.keep_drafting(q) for q in probes]


@pytest.mark.parametrize(("heard", "drafted"), [(0, 3), (2, 3), (3, 2)])
def test_tokens_it_was_not_asked_about_are_not_learnt_from(heard, drafted):
    # A copied draft, or in a chain another drafter's than the one that was drawn.
    session = opened(learn=True, threshold=0.5)
    for _ in range(30):
        session.plan()
        for _ in range(heard):
            session.keep_drafting([0.95])
        session.observe(report((drafted,), (0,)))
    session.plan()
    assert list(session.keep_drafting([0.95])) == [True]
    assert list(session.keep_drafting([0.45])) == [False]


def test_nothing_accepted_ever_ends_every_draft_at_once():
    session = opened(learn=True, decay=0.0)
    course = decode(session, 20, lambda _: 0.0, confidence=lambda chance: chance.random())
    assert course.drafted[-1] == 1


@pytest.mark.parametrize("draft_sampling", [None, SamplingSettings(temperature=0)])
def test_rows_that_drafted_nothing_are_told_as_such(device, draft_sampling):
    heard = []

    class Listening(ConfidenceGamma):
        def open(self, batch):
            session = super().open(batch)
            decide = session.keep_drafting
            session.plan = lambda: [1, 3]
            session.keep_drafting = lambda confidence: (heard.append(tuple(confidence)), decide(confidence))[1]
            return session

    controller = Listening(ConfidenceGammaConfig(threshold=0.0, max_gamma=3))
    decoder = Decoder(
        small_target(device), TableDrafter(VOCAB), gamma=controller, draft_sampling=draft_sampling, strict=True
    )
    decoder.generate([[2, 3], [4]], GenerationSettings(max_new_tokens=4, ignore_eos=True))
    first, second, third = heard[:3]
    assert all(0 < q <= 1 for q in (*first, second[1], third[1]))
    assert math.isnan(second[0])
    assert math.isnan(third[0])


def test_in_a_chain_a_row_learns_from_its_own_drafts_only(device):
    # Rows are served by different drafters, of which one draws its tokens and is asked, and one is not.
    target = small_target(device)
    copy = PromptCopyDrafter(PromptCopyConfig(min_match=1), target.info())
    chain = ChainDrafter(ChainConfig(drafters=(copy, TableDrafter(VOCAB))), target.info())
    controller = ConfidenceGamma(ConfidenceGammaConfig(learn=True, max_gamma=4, decay=0.7, c=0.3))
    decoder = Decoder(target, chain, gamma=controller, strict=True)

    def first_row(*others):
        settings = GenerationSettings(max_new_tokens=60, seed=3, ignore_eos=True)
        reports = decoder.stream([[2, 3, 5, 2, 3], *others], settings)
        return [(one.outcome.drafted[0], one.outcome.committed[0]) for one in reports if one.outcome.committed[0]]

    assert first_row() == first_row([4], [5, 5, 4]) == first_row([0, 2, 4, 5])
