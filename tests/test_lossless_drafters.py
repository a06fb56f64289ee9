"""Every drafter that ships gives the target's distribution, in one mixed case each.

The conformance kit tests one condition at a time (`tests/testing/test_builtin_drafters.py`). Here they meet: a
temperature, top-p, budgets that differ between the sequences of a batch and reach 0, and drafts that a controller
stops by confidence.
"""

import functools
import warnings

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import BestFirstTree, TokenTree
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import SamplingSettings
from tests.catalogue import DRAFTERS, REMEMBERING, Catalogue, plugin_of
from tests.lossless import SETTINGS, doubled_p_value, enumerate_continuations
from tests.pairwise import pairwise, some
from tests.toys import Gamma

MIXED = SamplingSettings(temperature=0.7, top_p=0.6)
LENGTH = 4


@pytest.fixture(scope="module")
def catalogue(target, tmp_path_factory):
    return Catalogue(target, tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="module")
def expected(target):
    """Return the exact distribution of continuations, enumerated once."""
    return enumerate_continuations(target, MIXED, length=LENGTH)


def check(target, drafter, expected, count):
    gamma = Gamma(3, 0, 2, stop_below=0.1)
    decoder = Decoder(target, drafter, gamma=gamma, sampling=MIXED, strict=True)
    assert doubled_p_value(decoder, expected, count, 1000, length=LENGTH) > 1e-4


@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution(target, catalogue, expected, who):
    check(target, catalogue.make(who), expected, 2500)


@pytest.mark.slow
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution_in_a_large_sample(target, catalogue, expected, who):
    """A q or a residual that is a little wrong needs this many to show."""
    check(target, catalogue.make(who), expected, 20_000)


TREES = {"static": TokenTree((-1, -1, -1, 0, 0, 1, 4)), "best-first": BestFirstTree((3, 2, 2))}
WHO_DRAFTS_TREES = (
    *("trigram", "copy-recent", "copy-frequent", "transformer", "early-exit", "quantized", "heads", "eagle3"),
    *("kenlm", "eagle3-parallel", "parallel", "dflash", "mtp", "suffix", "datastore"),
)
SAMPLED = ("temperature-0.7-top-p-0.6", "temperature-1")


@functools.cache
def exact(target, settings):
    return enumerate_continuations(target, SETTINGS[settings], length=LENGTH)


def check_trees(target, drafter, settings, shape, count):
    gamma = Gamma(7, 0, 4, tree=TREES[shape])
    decoder = Decoder(target, drafter, gamma=gamma, sampling=SETTINGS[settings], strict=True)
    trace = TraceObserver()
    decoder.generate([[2, 3, 5, 2, 3]] * 3, max_new_tokens=6, seed=1, observers=[trace])
    assert any(len(row) > 1 for report in trace.reports for row in report.outcome.parents or ())
    assert doubled_p_value(decoder, exact(target, settings), count, 500, length=LENGTH) > 1e-4


@pytest.mark.parametrize("who", some(WHO_DRAFTS_TREES, 7))
def test_trees_give_the_targets_distribution(target, catalogue, who):
    check_trees(target, catalogue.make(who), "temperature-0.7-top-p-0.6", "best-first", 2000)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "settings", "shape"), pairwise(WHO_DRAFTS_TREES, SAMPLED, TREES))
def test_trees_give_the_targets_distribution_in_a_large_sample(target, catalogue, who, settings, shape):
    check_trees(target, catalogue.make(who), settings, shape, 10_000)


def test_all_drafters_that_draft_trees_are_tried(catalogue):
    kinds = {plugin_of(who) for who in DRAFTERS if catalogue.make(who).drafts_trees}
    assert kinds == {plugin_of(who) for who in WHO_DRAFTS_TREES}


def test_those_that_remember_are_known(catalogue):
    assert [who for who in DRAFTERS if catalogue.make(who).remembers] == list(REMEMBERING)


@pytest.mark.parametrize("who", ["chain", pytest.param("random", marks=pytest.mark.slow)])
def test_a_drafter_of_lines_drafts_lines_where_a_tree_is_asked_for_and_says_so(target, catalogue, expected, who):
    decoder = Decoder(target, catalogue.make(who), gamma=Gamma(7, 4, tree=TREES["static"]), sampling=MIXED)
    trace = TraceObserver()
    with pytest.warns(PluginWarning, match="a tree was asked for, but .*Drafter drafts lines only; lines are"):
        decoder.generate([[2, 3, 5, 2, 3]] * 3, max_new_tokens=6, seed=1, observers=[trace])
    assert all(report.outcome.parents is None for report in trace.reports)
    assert max(max(report.outcome.drafted) for report in trace.reports) == 3  # as long as the longest path
    with warnings.catch_warnings(action="ignore", category=PluginWarning):
        assert doubled_p_value(decoder, expected, 2000, 500, length=LENGTH) > 1e-4
