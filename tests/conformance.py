"""Checks of the kit, run without a session of pytest for each: what they are reported as."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from specdec_core.testing import Check, checks_for
from specdec_core.testing.check_runner import run_check


class Result(NamedTuple):
    """The report of pytest for a check."""

    check: Check
    outcome: str
    message: str = ""

    @property
    def name(self):
        return self.check.name


def outcome_of(check, subject, **terms):
    """Run a check as the body of a test."""
    try:
        run_check(check, subject, **terms)
    except pytest.xfail.Exception as expected:
        return Result(check, "xfailed", str(expected))
    except pytest.fail.Exception as failure:
        return Result(check, "failed", str(failure))
    except pytest.skip.Exception as skipped:
        return Result(check, "skipped", str(skipped))
    return Result(check, "passed")


def outcomes(subject, *names, **terms):
    """Run the named checks of a subject, or all, in order."""
    chosen = [check for check in checks_for(subject.kind) if not names or check.name in names]
    assert set(names) <= {check.name for check in chosen}
    return [outcome_of(check, subject, **terms) for check in chosen]


def failures(subject, *names, **terms):
    """Return the results of the checks that failed."""
    return [one for one in outcomes(subject, *names, **terms) if one.outcome == "failed"]


def quick_names(kind):
    """Return the checks of `specdec check --quick`."""
    return [check.name for check in checks_for(kind) if not check.slow]
