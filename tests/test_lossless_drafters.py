"""Every drafter that ships gives the target's distribution, in one mixed case each.

The conformance kit tests one condition at a time (`tests/testing/test_builtin_drafters.py`). Here they meet: a
temperature, top-p, budgets that differ between the sequences of a batch and reach 0, and drafts that a controller
stops by confidence.
"""

from __future__ import annotations

import pytest

from specdec_core.decoding import Decoder
from specdec_core.interface.settings import SamplingSettings
from tests.catalogue import DRAFTERS, Catalogue
from tests.lossless import doubled_p_value, enumerate_continuations, small_target
from tests.toys import Gamma

MIXED = SamplingSettings(temperature=0.7, top_p=0.6)
LENGTH = 4


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


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
    assert doubled_p_value(decoder, expected, count, 500, length=LENGTH) > 1e-4


@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution(target, catalogue, expected, who):
    check(target, catalogue.make(who), expected, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution_in_a_large_sample(target, catalogue, expected, who):
    """A q or a residual that is a little wrong needs this many to show."""
    check(target, catalogue.make(who), expected, 20_000)
