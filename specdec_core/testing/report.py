"""What a run of the kit found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from specdec_core.testing.registration import Check

Outcome: TypeAlias = Literal["passed", "failed", "skipped", "expected", "optional"]
"""The outcome of a check: `expected` is an expected failure, `optional` one that does not count."""


@dataclass(frozen=True)
class Result:
    """The result of a check.

    Attributes:
        check: The check.
        outcome: `passed`; `failed`; `skipped`, if it does not apply; `expected`, if it failed as expected;
            `optional`, if it failed and is not required.
        message: What was done, what came back, and what was expected; or why it was skipped or expected to fail.
        seconds: Run time in seconds.
        required: Whether it counts.
        cause: Equal for failures with the same cause, as far as the kit can tell; empty where nothing failed.
        shortened: What it did not try, and what it can still see, where time was short; else empty.
        timed_out: Whether it was stopped by its time limit.
    """

    check: Check
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    required: bool = True
    cause: str = ""
    shortened: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class KitReport:
    """The results of a run.

    Attributes:
        results: One per check, in the order in which they ran.
        left_out: Names of the checks that a quick run leaves out.
        not_run: Names of the checks that were not run, for lack of time.
        stopped: Why they were not run; empty if all were.
        why_shortened: Why some checks tried fewer texts and samples; empty if none did.
    """

    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    stopped: str = ""
    why_shortened: str = ""

    @property
    def passed(self) -> bool:
        """Whether no required check failed, and none was not run."""
        return not self.failures and not self.not_run

    @property
    def failures(self) -> tuple[Result, ...]:
        """The failed results."""
        return tuple(one for one in self.results if one.outcome == "failed")

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of checks with each outcome."""
        return {outcome: sum(one.outcome == outcome for one in self.results) for outcome in get_args(Outcome)}

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of the check with this name."""
        return next(one.outcome for one in self.results if one.check.name == name)

    def __str__(self) -> str:
        lines = [f"{one.outcome:<9}{one.check.name}" for one in self.results]
        return "\n".join([*lines, *(f"\n{told}" for told in self.told()), *(f"\n{note}" for note in self.notes())])

    def told(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield the failures as text: the first of each cause in full, then the names of the others.

        Args:
            verbose: Yield all in full, those that do not count as well.
        """
        if verbose:
            shown = [one for one in self.results if one.outcome in ("failed", "optional")]
            yield from (_in_full(one) for one in shown)
            return
        for first, *others in _grouped(self.failures):
            yield _in_full(first) + (f"\n\n{_also(others)}" if others else "")

    def notes(self) -> Iterator[str]:
        """Yield what limits the verdict: what was shortened, left out and not run."""
        short = [one for one in self.results if one.shortened]
        if short:
            notes = [f"  {what}: {names}" for what, names in _by_note(short)]
            why = f", since {self.why_shortened}" if self.why_shortened else ""
            yield "\n".join([f"shortened: fewer texts and samples{why}", *notes])
        if self.left_out:
            yield f"left out by the quick run: {', '.join(self.left_out)}"
        if self.not_run:
            yield f"not run, since {self.stopped}: {', '.join(self.not_run)}"


def _in_full(result: Result) -> str:
    return f"{result.check.name}: {result.check.summary}\n{result.message}"


def _also(others: list[Result]) -> str:
    count = f"{len(others)} more checks" if len(others) > 1 else "1 more check"
    return f"{count} failed with the same cause: {', '.join(one.check.name for one in others)}"


def _grouped(results: Iterable[Result]) -> list[list[Result]]:
    """Return results by cause, in the order in which the causes first appeared."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(one.cause or one.check.name, []).append(one)
    return list(groups.values())


def _by_note(results: Iterable[Result]) -> Iterator[tuple[str, str]]:
    """Yield each note with the names of the checks that have it."""
    groups: dict[str, list[str]] = {}
    for one in results:
        groups.setdefault(one.shortened, []).append(one.check.name)
    for note, names in groups.items():
        yield note, ", ".join(names)
