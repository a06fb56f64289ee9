"""Tests of the kit itself: it catches each planted defect, and passes plugins without one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import torch

from specdec_core.interface import DrafterConfig
from specdec_core.testing import checks_for, subject_of
from tests.conformance import failures, outcomes, quick_names
from tests.testing import defects
from tests.testing.defects import DEFECTS, HEALTHY, side_effects
from tests.testing.defects.healthy import Branching, Cached, Hidden

ALL = [pytest.param(kind, name, id=f"{kind}-{name}") for kind, table in DEFECTS.items() for name in table]
EARLIER = {"drafter": ("zero-budget", "many-steps"), "gamma": ("any-batch-size",), "lenience": ("any-batch-size",)}
LASTING = [
    pytest.param(kind, name, id=name) for kind, table in DEFECTS.items() for name in table if table[name].lasts
]
HEALTHY_PARAMS = [pytest.param(kind, make, id=make.__name__) for kind in HEALTHY for make in HEALTHY[kind]]
# By default, the built-in drafters prove that the kit passes drafters like these.
LIKE_BUILTINS = (Branching, Cached, Hidden)
SHORT_PARAMS = [one for one in HEALTHY_PARAMS if one.values[1] not in LIKE_BUILTINS]


def subject(kind, make, **needs):
    """Return a plugin class as a subject, with what it declares that it needs."""
    said = {**getattr(make, "declares", {}), **needs, "__module__": __name__}
    return subject_of(kind, make, config=type("Config", (DrafterConfig,), said, use_attribute_docstrings=False))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_planted_defect_is_caught(kind, name):
    defect = DEFECTS[kind][name]
    for caught_by in defect.caught_by:
        (result,) = outcomes(subject(kind, defect.make), caught_by, require=[caught_by])
        assert result.outcome == "failed", f"{caught_by} {result.outcome} {result.message}"
        # The check itself must report the failure: the report of an unexpected exception does not count.
        report = {line.partition(":")[0]: line.partition(":")[2].strip() for line in result.message.splitlines()}
        assert all(report[part] for part in ("did", "got", "expected")), result.message
        assert not report["did"].startswith("ran the check"), result.message


@pytest.mark.parametrize(("kind", "name"), LASTING)
def test_a_lasting_change_is_caught_after_other_checks(kind, name):
    defect = DEFECTS[kind][name]
    tested = subject(kind, defect.make)
    outcomes(tested, *EARLIER[kind])
    assert {one.name for one in failures(tested, *defect.caught_by)} == set(defect.caught_by)


def test_the_default_device_is_restored():
    outcomes(subject("drafter", side_effects.ComputesElsewhere), "zero-budget")
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize(("kind", "make"), SHORT_PARAMS)
def test_a_plugin_without_a_defect_passes_in_short(kind, make):
    short = subject(kind, make, targets="decoder-only").in_short()
    assert not failures(short, *quick_names(kind))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), HEALTHY_PARAMS)
def test_a_plugin_without_a_defect_passes(kind, make):
    assert not failures(subject(kind, make, targets="decoder-only"))


@pytest.mark.slow
@pytest.mark.parametrize("make", HEALTHY["drafter"])
def test_a_drafter_without_a_defect_passes_behind_an_encoder(make):
    assert not failures(subject("drafter", make, targets="encoder-decoder"))


@pytest.mark.parametrize("kind", DEFECTS)
def test_every_check_catches_a_defect(kind):
    catching = {name for defect in DEFECTS[kind].values() for name in defect.caught_by}
    # Checks of specs are tested in test_plugin_spec_checks.py; `on-device` needs a second device.
    elsewhere = {"spec-imports-no-torch", "settings-described", "on-device"}
    assert {one.name for one in checks_for(kind)} - catching <= elsewhere


def test_defects_say_what_is_wrong():
    assert all(defect.make.__doc__ for table in DEFECTS.values() for defect in table.values())


def test_every_defect_is_in_the_table():
    planted = {defect.make for table in DEFECTS.values() for defect in table.values()}
    modules = {found.name for found in pkgutil.iter_modules(defects.__path__)} - {"healthy"}
    assert len(modules) > 5
    for module in modules:
        written = {
            kind
            for name, kind in vars(importlib.import_module(f"{defects.__name__}.{module}")).items()
            if inspect.isclass(kind) and kind.__module__.endswith(module) and not name.startswith("_")
        }
        assert written
        assert written <= planted
