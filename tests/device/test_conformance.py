"""The conformance kit on the device, for a drafter with a model, one with a table and one in Python."""

from __future__ import annotations

import pytest

from specdec_core.testing.check_runner import run_check
from tests.testing.test_builtin_drafters import GREEDY, OF_EVERY_DRAFTER, cases, catalogues, subjects

__all__ = ["catalogues", "subjects"]

KINDS = [("transformer", False), ("trigram", False), ("copy-recent", False)]


@pytest.mark.parametrize(("drafter", "check"), cases(KINDS, OF_EVERY_DRAFTER | {GREEDY}))
def test_a_drafter_conforms_on_the_device(subjects, drafter, check):
    run_check(check, subjects[drafter])
