"""Every built-in drafter passes the conformance kit.

By default, the checks that depend on a drafter's own code run for one drafter of each plugin, and all quick checks
for two drafters that differ. `-m slow` adds the slow checks, and those of exactness for the other kind of target
and with other settings.
"""

import pytest

from specdec_core import default_registry
from specdec_core.testing import DrafterKit
from specdec_core.testing.harness.tiny_target import tiny_target
from tests.catalogue import DRAFTERS, REMEMBERING, Catalogue, plugin_of
from tests.conformance import failure_of, kit_of, names_of

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
DIFFERENT = [("suffix", True), ("transformer", True)]
"""One that remembers, and one with a cache of its own."""
TABLES = [("trigram", False), ("copy-recent", False)]
"""Two that count and copy tokens."""
WITHIN = ("hierarchy-bigram", False)
"""One that drafts with another drafter."""

OF_EVERY_DRAFTER = {"rollback", "trees_respected"}
"""The checks that depend most on a drafter's own code: by default, for one drafter of each plugin.

`tests/offline/replay/test_builtin.py` compares a replay with live decoding for every drafter.
"""
OF_EXACTNESS = {
    *("many_steps", "rollback", "draft_sampled_from_q", "greedy_equals_baseline", "lossless_trees"),
    *("inside_hierarchy", "replay_equals_live"),
}
"""The checks that prove that the text is the target's: with every variant and on either target.

Large samples of every drafter are drawn in tests/test_lossless_drafters.py.
"""
OTHERS = {
    *(
        "draft_sampled_from_q",
        "autoregressive_as_declared",
        "many_steps",
        "long_drafts",
        "full_capacity",
        "early_stop",
        "inputs_unchanged",
    ),
    *("others_drafts", "budgets_respected", "hidden_states_declared", "earlier_sessions_forgotten"),
    *("eos_inside_draft", "greedy_equals_baseline", "rows_independent"),
}
"""By default for `DIFFERENT` only, and rows for `TABLES`; tests/test_lossless_drafters.py has every drafter."""
CHECKS = set(names_of(DrafterKit)) - {"spec_imports_no_torch", "settings_described"}
SLOW = {"lossless_top_k", "lossless_early_stop", "lossless_trees", "sessions_freed", "inside_hierarchy"}

ELSEWHERE = {"lossless_early_stop", "replay_equals_live"}
"""What others prove of drafters that forget, on a decoder-only target: tests/test_lossless_drafters.py,
with larger samples and drafts that stop early, and tests/offline/replay/test_builtin.py."""


def cases(drafters, names):
    """Return parameters for every pair of a drafter and a check that nothing else proves of it."""
    kinds = {True: "encoder-decoder", False: "decoder-only"}
    return [
        pytest.param((name, encoder), check, id=f"{name}-{kinds[encoder]}-{check}")
        for name, encoder in drafters
        for check in sorted(names if encoder or name in REMEMBERING else names - ELSEWHERE)
    ]


@pytest.fixture(scope="module")
def catalogues(device, tmp_path_factory):
    """Return the drafters for a decoder-only and for an encoder-decoder target."""
    return [
        Catalogue(tiny_target(encoder, device).loaded, tmp_path_factory.mktemp(f"catalogue{encoder}"))
        for encoder in (False, True)
    ]


@pytest.fixture(scope="module")
def kits(catalogues, device):
    """Return the kit of each drafter on one of the targets."""

    def kit(name, encoder):
        config = default_registry().drafter_config(plugin_of(name))
        said = {"targets": "encoder-decoder" if encoder else "decoder-only", "__module__": __name__}
        return kit_of(
            DrafterKit,
            lambda target: catalogues[encoder].make(name, afresh=True),
            config=type("Config", (config,), said, use_attribute_docstrings=False),
            device=device,
        )

    return {(name, encoder): kit(name, encoder) for name, encoder in ALL}


def require_passed(kit, check):
    failure = failure_of(kit, check)
    assert failure is None or failure.startswith("skipped"), failure


@pytest.mark.parametrize(
    ("drafter", "check"),
    [
        *cases(ONE_OF_EACH, OF_EVERY_DRAFTER),
        *cases(TABLES, {"rows_independent"}),
        *cases(DIFFERENT, CHECKS - SLOW - OF_EVERY_DRAFTER - {"global_state_unchanged", "lossless"}),
    ],
)
def test_a_drafter_conforms(kits, drafter, check):
    require_passed(kits[drafter], check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "check"),
    [
        *cases(ONE_OF_EACH, SLOW | {"global_state_unchanged", "lossless"}),
        *cases([one for one in ONE_OF_EACH if one not in DIFFERENT], OTHERS),
        *cases([WITHIN], CHECKS - SLOW - OTHERS - OF_EVERY_DRAFTER - {"global_state_unchanged", "lossless"}),
        *cases(OTHER_TARGET, OF_EXACTNESS),
        *cases(VARIANTS, OF_EXACTNESS | {"trees_respected", "rows_independent"}),
    ],
)
def test_a_drafter_conforms_in_other_conditions(kits, drafter, check):
    require_passed(kits[drafter], check)


def test_a_drafter_of_each_plugin_conforms_by_default():
    assert {plugin_of(name) for name, _ in ONE_OF_EACH} == {plugin_of(name) for name in DRAFTERS}
    assert CHECKS >= OF_EVERY_DRAFTER | OF_EXACTNESS | SLOW
