"""Drafters that draft in one pass at mask tokens give the target's distribution, by enumeration.

`tests/test_lossless_drafters.py` has lines and trees on a decoder-only target, for every drafter, and
`tests/decoding/test_encoder_decoder.py` has lines behind an encoder. Here are the rule that verifies a draft as a
whole, and trees and ragged rows behind an encoder.
"""

from __future__ import annotations

import functools

import pytest

from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.interface import BestFirstTree, TokenTree
from tests.catalogue import Catalogue
from tests.lossless import SETTINGS, doubled_p_value, enumerate_continuations, small_target
from tests.toys import Gamma

# The first token of eagle3 comes without a draft, and the last one is never drafted.
LENGTH = 4
DRAFTERS = ("parallel", "eagle3-parallel")
SAMPLED = ("temperature-1", "temperature-0.7-top-p-0.6")
TREES = {"static": TokenTree((-1, -1, -1, 0, 0, 1, 4)), "best-first": BestFirstTree((3, 2, 2))}


@pytest.fixture(scope="module")
def pairs(device, tmp_path_factory):
    """Return a small target of a family, and a function to the drafters for it."""

    @functools.cache
    def pairs(family):
        target = small_target(device, family)
        return target, Catalogue(target, tmp_path_factory.mktemp(family)).make

    return pairs


@functools.cache
def exact(target, settings):
    return enumerate_continuations(target, SETTINGS[settings], length=LENGTH)


@pytest.mark.parametrize("settings", SAMPLED)
@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafts_that_are_verified_as_a_whole_give_the_targets_distribution(pairs, who, family, settings):
    target, make = pairs(family)
    sampling = SETTINGS[settings]
    decoder = Decoder(target, make(who), gamma=Gamma(3, 0, 2), sampling=sampling, rule="block", strict=True)
    assert doubled_p_value(decoder, exact(target, settings), 4000, 1000, length=LENGTH) > 1e-4


@pytest.mark.parametrize(("shape", "settings"), list(zip(TREES, SAMPLED, strict=True)))
@pytest.mark.parametrize("who", DRAFTERS)
def test_trees_behind_an_encoder_give_the_targets_distribution(pairs, who, shape, settings):
    target, make = pairs("t5")
    gamma = Gamma(7, 0, 4, tree=TREES[shape])
    decoder = Decoder(target, make(who), gamma=gamma, sampling=SETTINGS[settings], strict=True)
    trace = TraceObserver()
    decoder.generate([[2, 3, 5, 2, 3]] * 3, max_new_tokens=6, seed=1, observers=[trace])
    assert any(len(row) > 1 for report in trace.reports for row in report.outcome.parents or ())
    assert doubled_p_value(decoder, exact(target, settings), 4000, 500, length=LENGTH) > 1e-4


@pytest.mark.parametrize("who", DRAFTERS)
def test_drafts_of_ragged_rows_behind_an_encoder_give_the_targets_distribution(pairs, who):
    target, make = pairs("t5")
    settings = "temperature-0.7-top-p-0.6"
    gamma = Gamma(3, 0, 2, stop_below=0.1)
    decoder = Decoder(target, make(who), gamma=gamma, sampling=SETTINGS[settings], strict=True)
    assert doubled_p_value(decoder, exact(target, settings), 4000, 1000, length=LENGTH) > 1e-4
