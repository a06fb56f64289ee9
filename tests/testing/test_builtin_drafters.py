"""Every built-in drafter passes the conformance kit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_core import default_registry
from specdec_core.testing import DrafterSubject, checks_for
from specdec_core.testing.harness.tiny_target import tiny_target
from specdec_core.testing.runner import run_check
from tests.catalogue import DRAFTERS, Catalogue, plugin_of

ALL = [(name, encoder) for name in DRAFTERS for encoder in (False, True)]
DEFAULT = [
    ("random", True),
    ("trigram", False),
    ("copy-recent", False),
    ("suffix", True),
    ("datastore", False),
    ("transformer", True),
    ("early-exit", False),
    ("quantised-4", True),
    ("heads", False),
    ("eagle3", True),
    ("dflash", False),
    ("mtp", False),
    ("chain", True),
    ("hierarchy-bigram", False),
    ("translated", False),
    ("translated-text", True),
]
"""One drafter of each plugin, on one target."""
OTHERS = [(name, not encoder) for name, encoder in DEFAULT] + [
    ("unigram", False),
    ("copy-frequent", False),
    ("suffix-alone", False),
    ("hierarchy-chain", True),
    ("hierarchy-quantised", False),
    ("early-exit-trained", True),
    ("quantised", False),
    ("translated-bigram", True),
]
"""Each plugin on the other target, and settings that take another way through it.

`tests/test_lossless_drafters.py` samples every drafter with every setting.
"""
QUICK = [check for check in checks_for("drafter") if not check.slow]
"""The checks of `specdec check --quick`. What the others sample meets in one case in the tests named above."""


def _id(drafter):
    name, encoder = drafter
    return f"{name}-{'encoder-decoder' if encoder else 'decoder-only'}"


@pytest.fixture(scope="module")
def catalogues(device, tmp_path_factory):
    """Return the drafters for a decoder-only and for an encoder-decoder target."""
    kinds = {False: "decoder-only", True: "encoder-decoder"}
    return {
        encoder: Catalogue(tiny_target(encoder, device).loaded, tmp_path_factory.mktemp(name))
        for encoder, name in kinds.items()
    }


@pytest.fixture(scope="module")
def subjects(catalogues, device):
    """Return each drafter as a subject on one of the targets."""

    def subject(name, encoder):
        def make(target):
            return catalogues[target.encoder_decoder].make(name, afresh=True)

        declared = default_registry().spec("drafter", plugin_of(name)).capabilities
        can = replace(declared, decoder_only=not encoder, encoder_decoder=encoder)
        return DrafterSubject(make, can, device=device)

    return {(name, encoder): subject(name, encoder) for name, encoder in ALL}


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.name)
@pytest.mark.parametrize("drafter", DEFAULT, ids=_id)
def test_a_drafter_conforms(subjects, drafter, check):
    run_check(check, subjects[drafter])


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [check for check in checks_for("drafter") if check.slow], ids=lambda check: check.name
)
@pytest.mark.parametrize("drafter", DEFAULT, ids=_id)
def test_a_drafter_conforms_where_it_takes_longer(subjects, drafter, check):
    run_check(check, subjects[drafter])


@pytest.mark.slow
@pytest.mark.parametrize("check", checks_for("drafter"), ids=lambda check: check.name)
@pytest.mark.parametrize("drafter", OTHERS, ids=_id)
def test_a_drafter_conforms_on_the_other_target(subjects, drafter, check):
    run_check(check, subjects[drafter])


def test_a_drafter_of_each_plugin_conforms_by_default():
    assert {plugin_of(name) for name, _ in DEFAULT} == {plugin_of(name) for name in DRAFTERS}
