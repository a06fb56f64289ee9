"""The runner of a check, as the body of a pytest test. Every way to use the kit comes here."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from specdec_core._time_limit import TimeLimitExceeded, time_limit
from specdec_core.interface.errors import is_failure
from specdec_core.testing.causes import cause_of
from specdec_core.testing.registration import TIMEOUT, Check, CheckFailure, format_error
from specdec_core.testing.subject import Subject

_AFTER_A_TIMEOUT = 0.1
"""The part of its limit that a check gets after one that was stopped: it likely calls the same function."""
_TIMEOUTS = 3
"""How many checks in a row are stopped before the others are skipped."""


@dataclass
class Findings:
    """The results of the checks of a subject so far.

    Attributes:
        timeouts: How many checks in a row were stopped by their limits.
        causes: For each cause of a failure, the checks that failed with it.
        shortened: For each note on what was not tried, for lack of time, the checks that have it.
    """

    timeouts: int = 0
    causes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    shortened: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def first_of(self, name: str) -> str:
        """Return the check that was the first to fail with the cause of another, or with its own."""
        return next((names[0] for names in self.causes.values() if name in names), name)


def findings_of(subject: Subject) -> Findings:
    """Return the findings of a subject's checks so far."""
    return subject.once("findings", Findings)


def run_check(
    check: Check,
    subject: Subject,
    *,
    expected_failures: Mapping[str, str] | None = None,
    require: Collection[str] = (),
    timeout: float | None = TIMEOUT,
) -> None:
    """Run a check as the body of a pytest test, without a traceback of the kit.

    It passes, fails with a message, is skipped, or fails as expected (`pytest.xfail`). The first failure of each
    cause is shown in full; later ones name the check that has it. After some checks in a row that did not end, the
    others of the subject are skipped.

    Args:
        check: The check.
        subject: The plugin under test.
        expected_failures: Names of checks that are known to fail, each with the reason. One that passes fails, so
            that the list stays true.
        require: Names of optional checks that count.
        timeout: Seconds that the check may compute; one that takes longer fails. None or 0 for no limit.
    """
    __tracebackhide__ = True
    found, name = findings_of(subject), check.name
    if found.timeouts >= _TIMEOUTS:
        pytest.skip(f"{_TIMEOUTS} checks in a row did not end; `-k {name}` runs it")
    subject.notes.clear()
    failure = _failure(check, subject, (timeout or 0) * (_AFTER_A_TIMEOUT if found.timeouts else 1))
    if subject.notes:
        note = "; ".join(dict.fromkeys(subject.notes))
        found.shortened[note].append(name)
        sys.stdout.write(f"shortened, since {subject.effort.why}: {note}\n")
    expected = (expected_failures or {}).get(name)
    if failure is not None and expected is not None:
        pytest.xfail(expected)
    if failure is not None and not check.required and name not in require:
        pytest.xfail(f"optional, {check.purpose}: {failure}")
    found.timeouts = found.timeouts + 1 if isinstance(failure and failure.__cause__, TimeLimitExceeded) else 0
    if failure is not None:
        found.causes[cause_of(failure)].append(name)
        first = found.first_of(name)
        if first != name:
            pytest.fail(
                f"{name}: the same cause as {first}, which is shown in full. `-k {name}` shows this one.",
                pytrace=False,
            )
        pytest.fail(f"{name}: {check.summary}\n\n{failure}", pytrace=False)
    if expected is not None:
        message = f"it passed, but was expected to fail: {expected}\nRemove it from expected_failures."
        pytest.fail(f"{name}: {check.summary}\n\n{message}", pytrace=False)


def _failure(check: Check, subject: Subject, timeout: float) -> CheckFailure | None:
    """Run a check and return its failure, with the plugin's exception as its cause; None if it passed."""
    import torch

    from specdec_core.testing.harness.state import restored_globals
    from specdec_core.testing.harness.tiny_target import discard_modified

    did = f"ran the check {check.name!r}: {check.summary}"
    try:
        with restored_globals(), time_limit(timeout, f"the check {check.name!r} of {subject.label}"):
            torch.set_num_threads(1)  # tiny models are several times slower on two
            return _applied(check, subject)
    except TimeLimitExceeded as stopped:
        failure = CheckFailure(
            stopped.did or did,
            f"{stopped}. It was stopped here:\n{format_error(stopped)}",
            "an end",
            "If it is slow rather than stuck, give it more time: `--timeout SECONDS` of `specdec check`, or "
            "`timeout` of a kit class or of `parametrize_with_checks`.",
        )
        failure.__cause__ = stopped
        return failure
    except BaseException as error:
        if not is_failure(error):
            raise
        failure = CheckFailure(did, format_error(error), "no exception")
        failure.__cause__ = error
        return failure
    finally:
        discard_modified()


def _applied(check: Check, subject: Subject) -> CheckFailure | None:
    """Run a check within its limit. Skip it where it does not apply."""
    try:
        reason = check.skip_reason(subject)
        if reason is not None:
            pytest.skip(reason)
        check.run(subject)
    except CheckFailure as failure:
        failure.hint = failure.hint or subject.advice(failure)
        return failure
    return None
