"""Trees through the whole loop: exact at every temperature, for any shape, batch and drafter that drafts them."""

import warnings
from itertools import product

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import BestFirstTree, DraftSession, Proposal, TokenTree
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations
from tests.pairwise import some
from tests.toys import CountingDrafter, Gamma, TableDrafter

LENGTH = 4
SHAPES = {
    "wide": TokenTree.from_widths((3, 2)),
    "uneven": TokenTree((-1, -1, -1, 0, 0, 1, 3)),
    "best-first": BestFirstTree((3, 3, 1)),
}


@pytest.fixture(scope="module")
def expected(target):
    return {name: enumerate_continuations(target, each, length=LENGTH) for name, each in SETTINGS.items()}


@pytest.mark.parametrize(("shape", "settings"), some(product(SHAPES, SETTINGS), 5))
def test_a_drawn_tree_gives_the_targets_distribution(target, expected, shape, settings):
    gamma = Gamma(len(SHAPES[shape]), 0, 3, tree=SHAPES[shape])
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, sampling=SETTINGS[settings], strict=True)
    trace = TraceObserver()
    decoder.generate([[1, 2]], max_new_tokens=8, observers=[trace])
    assert any(report.outcome.parents for report in trace.reports)
    count = 120 if SETTINGS[settings].greedy else 2000
    assert doubled_p_value(decoder, expected[settings], count, count // 4, length=LENGTH) > 1e-4


def test_a_best_first_tree_chooses_a_node_before_its_token_is_drawn(target, expected, tmp_path):
    """A drafter that is never rejected shows it at once: what it drafts has the distribution of the target."""
    target.model.save_pretrained(tmp_path)
    drafter = {"name": "transformer", "model": str(tmp_path)}
    decoder = Decoder(target, drafter, gamma=Gamma(5, tree=BestFirstTree((3, 2))), strict=True)
    assert doubled_p_value(decoder, expected["temperature-1"], 2400, length=LENGTH) > 1e-4


@pytest.mark.parametrize(("lenience", "drafts_trees"), [(None, True), (1.0, True), (0.5, False)])
def test_trees_are_drafted_where_lenience_is_1(target, lenience, drafts_trees):
    gamma = Gamma(9, tree=SHAPES["wide"])
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, lenience=lenience, strict=True)
    trace = TraceObserver()
    with warnings.catch_warnings(action="ignore", category=PluginWarning):
        decoder.generate([[1, 2]], max_new_tokens=8, observers=[trace])
    assert any(report.outcome.parents for report in trace.reports) == drafts_trees


def test_processors_see_the_path_of_each_node():
    to_probs = LogitsToProbs(SamplingSettings(temperature=0, repetition_penalty=100.0))
    request = DraftRecorder(to_probs, RowGenerators((0,)), 1, VOCAB, 4, "cpu")
    request.start([[3]], (4,), tree=TokenTree.from_widths((2, 1)), depth=(2,))
    falling = torch.arange(VOCAB, 0, -1.0)
    assert request.branch(falling[None, None]).tokens.tolist() == [[0, 1]]
    assert request.branch(falling.expand(1, 2, VOCAB)).tokens.tolist() == [[1, 0]]  # no token twice


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
    decoder = Decoder(target, LongLine(VOCAB), gamma=Gamma(9, tree=SHAPES["wide"]))
    with pytest.warns(PluginWarning, match=r"a line of 9 tokens was proposed for row 0; a path may have 2 there"):
        result = decoder.generate([[1, 2]], max_new_tokens=12, seed=1)
    assert len(result.failures) == 1


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("shape", [BestFirstTree((8, 3)), BestFirstTree((2, 14)), TokenTree.from_widths((8, 2))])
def test_a_tree_may_be_wider_than_the_vocabulary(target, shape, temperature):
    gamma = Gamma(len(shape), tree=shape)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, temperature=temperature, strict=True)
    trace = TraceObserver()
    decoder.generate([[1, 2], [3]], max_new_tokens=30, observers=[trace])
    first = trace.reports[0].outcome
    assert first.drafted == (len(shape), len(shape))
    assert first.accepted[0] > 0 or shape.widths[0] < VOCAB  # one of the siblings is what follows
