"""The kit is judged itself: each planted defect must be caught, and who has none must pass."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import torch

from specdec_core.border import Capabilities
from specdec_core.testing import checks, run_checks, subject_of
from specdec_core.testing.running import judge
from tests.testing import defects
from tests.testing.defects import DEFECTS, HEALTHY, unmannerly

ALL = [pytest.param(kind, name, id=f"{kind}-{name}") for kind, table in DEFECTS.items() for name in table]
EARLIER = {"drafter": ("zero-budget", "many-steps"), "gamma": ("any-batch",), "lenience": ("any-batch",)}
LASTING = [
    pytest.param(kind, name, id=name) for kind, table in DEFECTS.items() for name in table if table[name].lasts
]


def subject(kind, make):
    """Return what is judged, with the capabilities that a class says to declare."""
    return subject_of(kind, make, capabilities=getattr(make, "declares", Capabilities()))


def check_of(kind, name):
    (found,) = [check for check in checks(kind) if check.name == name]
    return found


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_planted_defect_is_caught(kind, name):
    defect = DEFECTS[kind][name]
    for caught_by in defect.caught_by:
        result = judge(check_of(kind, caught_by), subject(kind, defect.make), required=True)
        assert result.outcome == "failed", f"{caught_by} {result.outcome} {result.message}"
        # What was done, what came back, what was expected: said by the check, and not for it.
        said = {line.partition(":")[0]: line.partition(":")[2].strip() for line in result.message.splitlines()}
        assert all(said[part] for part in ("did", "got", "expected")), result.message
        assert not said["did"].startswith("ran the check"), result.message


@pytest.mark.parametrize(("kind", "name"), LASTING)
def test_what_lasts_is_seen_after_other_checks(kind, name):
    defect = DEFECTS[kind][name]
    judged = subject(kind, defect.make)
    run_checks(judged, select=EARLIER[kind])
    report = run_checks(judged, select=defect.caught_by)
    assert {one.check.name for one in report.failures} == set(defect.caught_by), str(report)


def test_where_others_compute_is_put_back():
    judge(check_of("drafter", "zero-budget"), subject("drafter", unmannerly.ComputesElsewhere), required=True)
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "make"), [pytest.param(kind, make, id=make.__name__) for kind in HEALTHY for make in HEALTHY[kind]]
)
def test_who_has_no_defect_passes(kind, make):
    report = run_checks(subject(kind, make))
    assert report.passed, str(report)


@pytest.mark.parametrize("kind", DEFECTS)
def test_no_check_is_idle(kind):
    catching = {name for defect in DEFECTS[kind].values() for name in defect.caught_by}
    of_functions = subject_of(kind, HEALTHY[kind][-1])
    never = {one.name for one in checks(kind) if not judged_by_name_only(one, of_functions)} - catching
    assert never <= {"on-device"}  # which takes a second device to fail


def judged_by_name_only(check, subject):
    """Whether a check is about announcements, which nothing here has; those are tested by themselves."""
    return "announces nothing" in (check.unfit(subject) or "")


@pytest.mark.parametrize("kind", DEFECTS)
def test_defects_are_many_and_say_what_is_wrong(kind):
    assert len(DEFECTS[kind]) >= 15
    assert all(defect.make.__doc__ for defect in DEFECTS[kind].values())


def test_every_defect_that_is_written_is_in_the_table():
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
