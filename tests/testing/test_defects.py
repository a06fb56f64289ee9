"""The kit itself: each planted defect is caught by its check, and plugins without one pass."""

import pytest
import torch

from specdec_core.decoding import answer
from specdec_core.interface import DrafterConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing import DrafterKit, GammaKit, LenienceKit
from specdec_core.testing.checks import controllers
from specdec_core.testing.harness.tiny_target import tiny_target
from tests.conformance import failure_of, failures, kit_of, names_of
from tests.testing import defective_controllers, defective_drafters, healthy

DEFECTS = {
    DrafterKit: defective_drafters.DEFECTS,
    GammaKit: defective_controllers.GAMMAS,
    LenienceKit: defective_controllers.LENIENCES,
}
HEALTHY = {
    DrafterKit: (
        healthy.Sampling,
        healthy.Branching,
        healthy.Deterministic,
        healthy.Cached,
        healthy.Hidden,
        healthy.Remembers,
    ),
    GammaKit: (healthy.Following, healthy.Confident),
    LenienceKit: (healthy.Lenient, healthy.Strict),
}
BY_DEFAULT = [{check: defect for defect, check in reversed(table)} for table in DEFECTS.values()]
"""The first defect of each check."""
ELSEWHERE = {"spec_imports_no_torch", "settings_described"}
"""Checks of specs are tested in test_kit.py."""


def kit_for(base, plugin, **declared):
    said = {**getattr(plugin, "declares", {}), **declared, "__module__": __name__}
    config = type("Config", (DrafterConfig,), said, use_attribute_docstrings=False)
    return kit_of(base, plugin, config=config)


@pytest.mark.parametrize(
    ("base", "defect", "check"),
    [
        pytest.param(
            base,
            defect,
            check,
            id=f"{defect.__name__}-{check}",
            marks=[] if defect is first[check] else [pytest.mark.slow],
        )
        for (base, table), first in zip(DEFECTS.items(), BY_DEFAULT, strict=True)
        for defect, check in table
    ],
)
def test_a_planted_defect_is_caught(base, defect, check):
    report = failure_of(kit_for(base, defect), check)
    assert report is not None
    assert report.startswith("did: ")
    assert "\ngot: " in report
    assert "\nexpected: " in report
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize("base", DEFECTS)
def test_every_check_catches_a_defect(base):
    caught = {check for _, check in DEFECTS[base]}
    if base is LenienceKit:  # most checks are those of all controllers
        caught |= {check for _, check in DEFECTS[GammaKit]} | {"greedy_bound", "probability_bound"}
    assert set(names_of(base)) - caught <= ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("base", [GammaKit, LenienceKit])
def test_a_controller_without_a_defect_passes(base):
    for plugin in HEALTHY[base]:
        assert not failures(kit_of(base, plugin))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "targets"), list(zip(HEALTHY[DrafterKit], ["encoder-decoder", "decoder-only"] * 3, strict=True))
)
def test_any_drafter_without_a_defect_passes(plugin, targets):
    # The drafters that ship prove for both kinds of target that no check fails without a reason.
    assert not failures(kit_for(DrafterKit, plugin, targets=targets))


# Errors that no plugin can cause through the interface: the checks of decoding must see them, too.


def test_a_core_that_accepts_every_greedy_draft_fails(monkeypatch):
    def accept_all(best, bits, draft, parents, lengths, given=answer._followed):
        rows = zip(draft, best, lengths, strict=True)
        return given([[*own[:n], *row[n:]] for own, row, n in rows], bits, draft, parents, lengths)

    monkeypatch.setattr(answer, "_followed", accept_all)
    report = failure_of(kit_for(DrafterKit, healthy.Deterministic), "greedy_equals_baseline")
    assert "the baseline's tokens" in report


def test_another_distribution_fails(monkeypatch):
    exact = controllers.exact(tiny_target(), SamplingSettings())
    monkeypatch.setattr(controllers, "exact", lambda *_: dict(zip(exact, reversed(exact.values()), strict=True)))
    assert "chi-square" in failure_of(kit_of(GammaKit, healthy.Following), "lossless")


@pytest.mark.parametrize(
    ("check", "lenience", "claimed"), [("greedy_bound", 0.2, 0.9), ("probability_bound", 0.05, 1.0)]
)
def test_a_token_beyond_the_bound_of_lenience_fails(monkeypatch, check, lenience, claimed):
    kit = kit_of(LenienceKit, plugin="constant", settings={"lenience": lenience})
    assert failure_of(kit, check) is None
    monkeypatch.setattr(controllers, "lenience_at", lambda row, position: claimed)
    assert "token" in failure_of(kit, check)
