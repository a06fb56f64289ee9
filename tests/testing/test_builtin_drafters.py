"""Every built-in drafter passes the conformance kit.

By default, the checks that depend on a drafter's own code run for one drafter of each plugin, and all quick checks
for three drafters that differ. `-m slow` adds the slow checks, and those of exactness for the other kind of target
and with other settings.
"""

from __future__ import annotations

import pytest

from specdec_core import default_registry
from specdec_core.testing import DrafterSubject, checks_for
from specdec_core.testing.check_runner import run_check
from specdec_core.testing.harness.tiny_target import tiny_target
from tests.catalogue import DRAFTERS, Catalogue, plugin_of

ALL = [(name, encoder) for name in DRAFTERS for encoder in (False, True)]
ONE_OF_EACH = [
    ("random", True),
    ("trigram", False),
    ("copy-recent", False),
    ("suffix", True),
    ("datastore", False),
    ("transformer", True),
    ("early-exit", False),
    ("quantized-4", True),
    ("parallel", False),
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
VARIANTS = [
    ("unigram", False),
    ("kenlm", True),
    ("copy-frequent", False),
    ("suffix-alone", False),
    ("hierarchy-chain", True),
    ("hierarchy-quantized", False),
    ("early-exit-trained", True),
    ("eagle3-parallel", False),
    ("quantized", False),
    ("translated-bigram", True),
]
"""Settings that take another way through a drafter."""
OTHER_TARGET = [(name, not encoder) for name, encoder in ONE_OF_EACH]
DIFFERENT = [("suffix", True), ("transformer", True), ("hierarchy-bigram", False)]
"""One that remembers, one with a cache of its own, and one that drafts with another drafter."""

OF_THE_INTERFACE = {
    # Whatever breaks these also breaks `many-steps`, which mixes such steps at random.
    *("all-accepted", "none-accepted", "prefix-accepted", "step-without-draft", "first-step-without-draft"),
    *("other-drafter-used", "zero-budget-rows", "rows-finished"),
    # The core validates every proposal: `tests/test_lossless_drafters.py` would raise, with budgets of 0, 2, 3.
    *("zero-budget", "budget-respected", "ragged-rows", "ids-in-range", "q-sums-to-one", "q-covers-draft"),
    "proposal-valid",
}
"""Checks that say more exactly what is wrong where others fail, too: three drafters are enough."""
OF_EVERY_DRAFTER = {
    *("settings-described", "hidden-states-declared", "autoregressive-as-declared", "remembers-declared"),
    *("many-steps", "rollback", "eos-inside-draft", "other-drafter-in-some-rows", "long-drafts"),
    *("trees-respected", "many-rows", "full-capacity", "draft-sampled-from-q", "early-stop"),
    *("rows-independent", "drafter-unchanged", "target-unchanged"),
}
"""The checks that depend most on a drafter's own code: by default, for one drafter of each plugin.

`tests/offline/replay/test_builtin.py` compares a replay with live decoding for every drafter.
"""
GREEDY = "greedy-equals-baseline"
"""By default for decoder-only targets: `tests/decoding/test_encoder_decoder.py` runs every drafter on T5."""
OF_EXACTNESS = {
    *("many-steps", "rollback", "draft-sampled-from-q", "greedy-equals-baseline", "lossless", "lossless-trees"),
    *("inside-hierarchy", "replay-equals-live"),
}
"""The checks that prove that the text is the target's: with every variant and on either target."""
CHECKS = {check.name: check for check in checks_for("drafter")}
SLOW = {name for name, check in CHECKS.items() if check.slow}


def cases(drafters, names):
    """Return parameters for every pair of a drafter and a check."""
    return [
        pytest.param(drafter, CHECKS[name], id=f"{_id(drafter)}-{name}")
        for drafter in drafters
        for name in CHECKS
        if name in names
    ]


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

        config = default_registry().drafter_config(plugin_of(name))
        kind = {"targets": "encoder-decoder" if encoder else "decoder-only", "__module__": __name__}
        return DrafterSubject(make, type("Config", (config,), kind, use_attribute_docstrings=False), device=device)

    return {(name, encoder): subject(name, encoder) for name, encoder in ALL}


@pytest.mark.parametrize(
    ("drafter", "check"),
    [
        *cases(ONE_OF_EACH, OF_EVERY_DRAFTER),
        *cases([one for one in ONE_OF_EACH if one not in DIFFERENT and not one[1]], {GREEDY}),
        *cases(DIFFERENT, CHECKS.keys() - SLOW - OF_EVERY_DRAFTER),
    ],
)
def test_a_drafter_conforms(subjects, drafter, check):
    run_check(check, subjects[drafter])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "check"),
    [
        *cases(ONE_OF_EACH, SLOW - {"spec-imports-no-torch"}),  # which test_builtin_controllers.py checks
        # Large samples of every drafter are drawn in tests/test_lossless_drafters.py.
        *cases(OTHER_TARGET, OF_EXACTNESS - {"lossless"}),
        *cases(VARIANTS, (OF_EXACTNESS - {"lossless"}) | {"trees-respected", "rows-independent"}),
    ],
)
def test_a_drafter_conforms_in_other_conditions(subjects, drafter, check):
    run_check(check, subjects[drafter])


def test_a_drafter_of_each_plugin_conforms_by_default():
    assert {plugin_of(name) for name, _ in ONE_OF_EACH} == {plugin_of(name) for name in DRAFTERS}
    assert set(DIFFERENT) <= set(ONE_OF_EACH)
    assert CHECKS.keys() >= OF_THE_INTERFACE | OF_EVERY_DRAFTER | OF_EXACTNESS
