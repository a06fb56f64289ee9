"""Runs checks, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter

from specdec_core._time_limit import TimeLimitExceeded, time_limit
from specdec_core.interface.errors import is_failure
from specdec_core.testing.causes import cause_of
from specdec_core.testing.limits import TIMEOUT, TOTAL_TIMEOUT, Limits
from specdec_core.testing.registration import Check, CheckFailure, checks_for, format_error, require_known
from specdec_core.testing.report import KitReport, Result
from specdec_core.testing.subject import Subject


def run_checks(
    subject: Subject,
    *,
    select: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    require: Iterable[str] = (),
    quick: bool = False,
    timeout: float | None = TIMEOUT,
    total_timeout: float | None = TOTAL_TIMEOUT,
    on_start: Callable[[Check], object] | None = None,
    on_result: Callable[[Result], object] | None = None,
) -> KitReport:
    """Run the checks of a subject's kind.

    Args:
        subject: The plugin under test.
        select: Names of the checks to run; all by default.
        expected_failures: Names of checks that are known to fail, each with the reason. One that passes counts as
            failed, so that the list stays true.
        require: Names of optional checks that count.
        quick: Leave out the slow checks, and try fewer texts and samples in the others.
        timeout: Seconds that each check may take; one that takes longer fails. None or 0 for no limit.
        total_timeout: Seconds that all may take; what is left then is not run. None or 0 for no limit.
        on_start: Called with each check before it runs.
        on_result: Called with each result as soon as it is known.

    Raises:
        ConfigError: There is no check with a given name.
    """
    expected, selected, required = expected_failures or {}, set(select), set(require)
    for names, where in ((selected, "select"), (expected, "expected_failures"), (required, "require")):
        require_known(subject.kind, names, where)
    if quick:
        subject = subject.in_short()
    chosen = [one for one in checks_for(subject.kind) if not selected or one.name in selected]
    left_out = [one.name for one in chosen if quick and one.slow and one.name not in selected]
    limits = Limits(timeout or None, total_timeout or None)
    results, not_run = [], []
    for one in chosen:
        if one.name in left_out:
            continue
        seconds, is_rest = limits.of_the_next()
        if limits.stopped:
            not_run.append(one.name)
            continue
        if on_start is not None:
            on_start(one)
        is_required = one.required or one.name in required
        result = run_check(one, subject, expected.get(one.name), required=is_required, timeout=seconds)
        if is_rest and result.timed_out:
            not_run.append(one.name)  # it did not get the time of a check
            limits.spent()
            continue
        if result.outcome != "skipped":
            limits.learn(timed_out=result.timed_out)
        results.append(result)
        if on_result is not None:
            on_result(result)
    why = subject.effort.why if any(one.shortened for one in results) else ""
    return KitReport(tuple(results), tuple(left_out), tuple(not_run), limits.stopped, why)


def run_check(
    check: Check,
    subject: Subject,
    expected: str | None = None,
    *,
    required: bool,
    timeout: float | None = TIMEOUT,
) -> Result:
    """Run a check.

    Args:
        check: The check.
        subject: The plugin under test.
        expected: Why it is known to fail; None if it is not.
        required: Whether it counts.
        timeout: Seconds that it may take; None or 0 for no limit.
    """
    start = perf_counter()
    subject.notes.clear()
    result = _outcome(check, subject, timeout)
    result = replace(
        result,
        seconds=perf_counter() - start,
        required=required,
        shortened="; ".join(dict.fromkeys(subject.notes)),
    )
    if expected is not None:
        if result.outcome == "failed":
            return replace(result, outcome="expected", message=expected)
        if result.outcome == "passed":
            message = f"it passed, but was expected to fail: {expected}\nRemove it from expected_failures."
            return replace(result, outcome="failed", message=message)
    if result.outcome == "failed" and not required:
        return replace(result, outcome="optional")
    return result


def _outcome(check: Check, subject: Subject, timeout: float | None) -> Result:
    import torch

    from specdec_core.testing.harness.state import restored_globals
    from specdec_core.testing.harness.tiny_target import discard_modified

    with restored_globals():
        torch.set_num_threads(1)  # tiny models are several times slower on two
        result = _run(check, subject, timeout)
    discard_modified()
    return result


def _run(check: Check, subject: Subject, timeout: float | None) -> Result:
    did = f"ran the check {check.name!r}: {check.summary}"
    try:
        with time_limit(timeout, f"the check {check.name!r} of {subject.label}"):
            return _applied(check, subject)
    except TimeLimitExceeded as stopped:
        failure = CheckFailure(
            stopped.did or did,
            f"{stopped}. It was stopped here:\n{format_error(stopped)}",
            "an end",
            "If it is slow rather than stuck, give it more time: `--timeout SECONDS` of `specdec check`, "
            "`--specdec-timeout SECONDS` of pytest, `timeout` in a kit class or of `run_checks`.",
        )
        return Result(check, "failed", str(failure), cause=cause_of(stopped), timed_out=True)
    except BaseException as error:
        if not is_failure(error):
            raise
        failure = CheckFailure(did, format_error(error), "no exception")
        return Result(check, "failed", str(failure), cause=cause_of(error))


def _applied(check: Check, subject: Subject) -> Result:
    """Run a check within its limit."""
    try:
        reason = check.skip_reason(subject)
        if reason is not None:
            return Result(check, "skipped", reason)
        check.run(subject)
    except CheckFailure as failure:
        failure.hint = failure.hint or subject.advice(failure)
        return Result(check, "failed", str(failure), cause=cause_of(failure))
    return Result(check, "passed")
