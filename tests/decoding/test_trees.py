"""Trees through the whole loop: exact at every temperature, for any shape, batch and drafter that drafts them."""

from __future__ import annotations

import warnings

import pytest

from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.interface import (
    BatchInfo,
    BestFirstTree,
    DraftSession,
    GammaController,
    GammaSession,
    PluginWarning,
    Proposal,
    TokenTree,
)
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations, small_target
from tests.toys import NO_CONFIG, CountingDrafter, TableDrafter

LENGTH = 4
SHAPES = {
    "wide": TokenTree.from_widths((3, 2)),
    "uneven": TokenTree((-1, -1, -1, 0, 0, 1, 3)),
    "best-first": BestFirstTree((3, 3, 1)),
}


class TreeGamma(GammaController):
    """Asks for the same tree in every step, with budgets that differ between the sequences of a batch."""

    def __init__(self, shape, *budgets):
        super().__init__(NO_CONFIG)
        self.shape, self.budgets = shape, budgets or (len(shape),)
        self.max_asked = max(self.budgets)

    @property
    def max_gamma(self):
        return self.max_asked

    def open(self, batch: BatchInfo):
        session = _TreeGammaSession()
        session.shape = self.shape
        session.budgets = [self.budgets[n % len(self.budgets)] for n in range(batch.batch_size)]
        return session


class _TreeGammaSession(GammaSession):
    def gamma(self):
        return self.budgets

    def tree(self):
        return self.shape


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def expected(target):
    return {name: enumerate_continuations(target, each, length=LENGTH) for name, each in SETTINGS.items()}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_drawn_tree_gives_the_targets_distribution(target, expected, shape, settings):
    gamma = TreeGamma(SHAPES[shape], len(SHAPES[shape]), 0, 3)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, sampling=SETTINGS[settings], strict=True)
    trace = TraceObserver()
    decoder.generate([[1, 2]], max_new_tokens=8, observers=[trace])
    assert any(report.outcome.parents for report in trace.reports)
    count = 120 if SETTINGS[settings].greedy else 2000
    assert doubled_p_value(decoder, expected[settings], count, count // 4, length=LENGTH) > 1e-4


def test_a_best_first_tree_chooses_a_node_before_its_token_is_drawn(target, expected, tmp_path):
    """A drafter that is never rejected shows it at once: what it drafts has the law of the target."""
    target.model.save_pretrained(tmp_path)
    drafter = {"name": "transformer", "model": str(tmp_path)}
    decoder = Decoder(target, drafter, gamma=TreeGamma(BestFirstTree((3, 2))), strict=True)
    assert doubled_p_value(decoder, expected["temperature-1"], 2400, length=LENGTH) > 1e-4


@pytest.mark.parametrize(("lenience", "drafts_trees"), [(None, True), (1.0, True), (0.5, False)])
def test_trees_are_drafted_where_lenience_is_1(target, lenience, drafts_trees):
    gamma = TreeGamma(SHAPES["wide"], 9)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, lenience=lenience, strict=True)
    trace = TraceObserver()
    with warnings.catch_warnings(action="ignore", category=PluginWarning):
        decoder.generate([[1, 2]], max_new_tokens=8, observers=[trace])
    assert any(report.outcome.parents for report in trace.reports) == drafts_trees


class LongLine(CountingDrafter):
    """Answers a request for a tree with a line as long as its budget."""

    drafts_trees = True

    def open(self, session):
        return _LongLineSession(self)


class _LongLineSession(DraftSession):
    def __init__(self, drafter):
        self.drafter = drafter

    def propose(self, request):
        return Proposal.from_rows([[2] * most for most in request.budget])


def test_a_line_that_is_longer_than_a_path_may_be_is_refused(target):
    decoder = Decoder(target, LongLine(VOCAB), gamma=TreeGamma(SHAPES["wide"], 9))
    with pytest.warns(PluginWarning, match=r"a line of 9 tokens was proposed for row 0; a path may have 2 there"):
        result = decoder.generate([[1, 2]], max_new_tokens=12, seed=1)
    assert len(result.failures) == 1


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("shape", [BestFirstTree((8, 3)), BestFirstTree((2, 14)), TokenTree.from_widths((8, 2))])
def test_a_tree_may_be_wider_than_the_vocabulary(target, shape, temperature):
    gamma = TreeGamma(shape, len(shape), 9)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, temperature=temperature, strict=True)
    trace = TraceObserver()
    decoder.generate([[1, 2], [3]], max_new_tokens=30, observers=[trace])
    first = trace.reports[0].outcome
    assert first.drafted == (len(shape), 9)
    assert first.accepted[0] > 0 or shape.widths[0] < VOCAB  # one of the siblings is what follows
