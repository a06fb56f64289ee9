"""Running checks: without pytest, or as pytest's tests do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal, TypeAlias, get_args

from specdec_core.testing.checking import Check, CheckFailure, checks, require_known
from specdec_core.testing.failing import told
from specdec_core.testing.subject import Subject

Outcome: TypeAlias = Literal["passed", "failed", "skipped", "expected", "optional"]
"""What became of a check: `expected` failed as its author said, `optional` failed and does not count."""


@dataclass(frozen=True)
class Result:
    """What became of a check.

    Attributes:
        check: The check.
        outcome: `passed`; `failed`; `skipped`, where it does not apply; `expected`, where it failed as its author
            said; `optional`, where it failed and need not hold.
        message: What was done, what came back, and what was expected; or why it was skipped or expected to fail.
        seconds: How long it took.
    """

    check: Check
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class KitReport:
    """What became of all checks.

    Attributes:
        results: One for each check, in the order in which they ran.
    """

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed that must hold."""
        return not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that failed."""
        return tuple(one for one in self.results if one.outcome == "failed")

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many checks came to each outcome."""
        return {outcome: sum(one.outcome == outcome for one in self.results) for outcome in get_args(Outcome)}

    def outcome(self, name: str) -> Outcome:
        """Return what became of the check of this name."""
        return next(one.outcome for one in self.results if one.check.name == name)

    def __str__(self) -> str:
        lines = [f"{one.outcome:<9}{one.check.name}" for one in self.results]
        told = [f"\n{one.check.name}: {one.check.summary}\n{one.message}" for one in self.failures]
        return "\n".join([*lines, *told])


def run_checks(
    subject: Subject,
    *,
    select: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    require: Iterable[str] = (),
) -> KitReport:
    """Run the checks of a subject's kind.

    Args:
        subject: What is judged.
        select: Names of the only checks to run; all of them where empty.
        expected_failures: Names of checks that are known to fail, each with the reason. One that passes all the
            same counts as failed, so that the list stays true.
        require: Names of optional checks that shall count.

    Raises:
        ConfigError: A name is not that of a check.
    """
    expected, only, counting = expected_failures or {}, set(select), set(require)
    for names, where in ((only, "select"), (expected, "expected_failures"), (counting, "require")):
        require_known(subject.kind, names, where)
    return KitReport(
        tuple(
            judge(one, subject, expected.get(one.name), required=one.required or one.name in counting)
            for one in checks(subject.kind)
            if not only or one.name in only
        )
    )


def judge(check: Check, subject: Subject, expected: str | None = None, *, required: bool) -> Result:
    """Run a check, and say what its outcome means.

    Args:
        check: The check.
        subject: What is judged.
        expected: Why it is known to fail; None where it is not.
        required: Whether it counts.
    """
    begun = perf_counter()
    result = replace(_outcome(check, subject), seconds=perf_counter() - begun)
    if expected is not None:
        if result.outcome == "failed":
            return replace(result, outcome="expected", message=expected)
        if result.outcome == "passed":
            message = f"it passed, but was expected to fail: {expected}\nTake it out of expected_failures."
            return replace(result, outcome="failed", message=message)
    if result.outcome == "failed" and not required:
        return replace(result, outcome="optional")
    return result


def _outcome(check: Check, subject: Subject) -> Result:
    import torch

    from specdec_core.testing.instruments.process import restored
    from specdec_core.testing.instruments.world import drop_spoilt

    with restored():
        torch.set_num_threads(1)  # models as tiny as the kit's run several times slower on two
        result = _run(check, subject)
    drop_spoilt()
    return result


def _run(check: Check, subject: Subject) -> Result:
    try:
        reason = check.unfit(subject)
        if reason is not None:
            return Result(check, "skipped", reason)
        check.run(subject)
    except CheckFailure as failure:
        return Result(check, "failed", str(failure))
    except Exception as error:
        did = f"ran the check {check.name!r}: {check.summary}"
        return Result(check, "failed", str(CheckFailure(did, told(error), "no exception")))
    return Result(check, "passed")
