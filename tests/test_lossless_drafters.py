"""Every drafter that ships x every kind of sampling x batch 1 and 3 gives the target's distribution.

Small samples go through every path; a large one of each drafter, with drafts of up to three tokens, is what shows
a q or a residual that is a little wrong.
"""

from __future__ import annotations

import functools

import pytest

from specdec_core.decoding import Decoder
from tests.catalogue import DRAFTERS, Catalogue
from tests.lossless import SETTINGS, enumerate_continuations, p_value, sample, small_target
from tests.toys import Gamma


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def make(target, tmp_path_factory):
    """Return a function that makes a drafter of the catalogue, once."""
    return Catalogue(target, tmp_path_factory.mktemp("drafters")).make


SLOW = ("transformer", "hierarchy-bigram", "hierarchy-chain")


@pytest.fixture(scope="module")
def expected(target):
    """Return the exact distribution of continuations, enumerated once."""
    return functools.cache(
        lambda setting, length: enumerate_continuations(target, SETTINGS[setting], length=length)
    )


def check(target, drafter, gamma, expected, setting, batch, count, length):
    decoder = Decoder(target, drafter, gamma=gamma, sampling=SETTINGS[setting], strict=True)
    assert p_value(sample(decoder, batch, count, length=length), expected(setting, length)) > 1e-4


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution(target, make, expected, who, setting, batch):
    count = 15 if SETTINGS[setting].argmax else (30 if who in SLOW else 60) * batch
    check(target, make(who), Gamma(2), expected, setting, batch, count, 3)


STRONG = ("temperature-0.7-top-p-0.9", "top-k-3", "temperature-0.7")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("who", DRAFTERS)
def test_drafter_gives_the_targets_distribution_in_a_large_sample(target, make, expected, who, which):
    """At temperature 1, and with one other setting, another for each drafter."""
    setting = STRONG[DRAFTERS.index(who) % len(STRONG)] if which else "temperature-1"
    check(target, make(who), Gamma(3, 2), expected, setting, 100, 9000, 4)
