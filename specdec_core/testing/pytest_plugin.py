"""The pytest plugin of `specdec check`: runs the checks of one plugin without a test file."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from specdec_core.testing.check_runner import findings_of, run_check
from specdec_core.testing.registration import checks_for, require_known
from specdec_core.testing.subject import Subject

# The settings and tests of the folder in which the command runs have nothing to do with the plugin.
_OPTIONS = (
    *("-c", os.devnull, "--rootdir", os.curdir, "--noconftest"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings", "--assert=plain"),
    *("--no-header", "-rN", "-o", "verbosity_test_cases=1", "-o", "console_output_style=classic"),
)
_EXIT_CODES: dict[int, int] = {
    pytest.ExitCode.OK: 0,
    pytest.ExitCode.TESTS_FAILED: 1,
    pytest.ExitCode.INTERNAL_ERROR: 1,
}
_FILE_WIDTH = "140"
"""Columns of what is written to a file."""
_NAME_WIDTH, _SUMMARY_AT = 26, 46
"""Width of the names of checks, and the column at which their summaries begin."""


class Suite:
    """The checks of a plugin, as a plugin of pytest.

    Args:
        subject: The plugin under test.
        only: Names of the checks to run; all by default.
        require: Names of optional checks that count.
        quick: Leave out the slow checks that `only` does not name, and try fewer texts and samples in the others.
        timeout: Seconds that each check may compute; 0 for no limit.
        total_timeout: Seconds after which no further check begins; 0 for no limit.

    Raises:
        ConfigError: A given name is not that of a check.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        only: Collection[str],
        require: Collection[str],
        quick: bool,
        timeout: float,
        total_timeout: float,
    ) -> None:
        require_known(subject.kind, only, "--only")
        require_known(subject.kind, require, "--require")
        self._subject = subject.in_short() if quick else subject
        self._terms: dict[str, Any] = {"require": require, "timeout": timeout}
        chosen = [one for one in checks_for(subject.kind) if not only or one.name in only]
        self._left_out = [one.name for one in chosen if quick and one.slow and one.name not in only]
        self._checks = {one.name: one for one in chosen if one.name not in self._left_out}
        self._total_timeout, self._began = total_timeout, monotonic()
        self._interrupted = 130

    def run(self, options: Sequence[str]) -> int:
        """Run the checks, print what they find, and return an exit code of `specdec check`.

        Args:
            options: Further options of pytest.
        """
        with pytest.MonkeyPatch.context() as patch:
            if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
                patch.setenv("COLUMNS", _FILE_WIDTH)
            code = pytest.main([*_OPTIONS, *options], plugins=[self])
        return self._interrupted if code == pytest.ExitCode.INTERRUPTED else _EXIT_CODES.get(code, 2)

    def pytest_configure(self, config: pytest.Config) -> None:
        """Collect no files."""
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            raise pytest.UsageError(f"specdec check: expected options of pytest; given {' '.join(config.args)}")
        config.args = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add a test for each check."""
        runs = {name: partial(run_check, one, self._subject, **self._terms) for name, one in self._checks.items()}
        items += session.genitems(_Checks.from_parent(session, name=self._subject.kind, runs=runs))

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """End the run when the time for all checks is over."""
        session = item.session
        rest = [other.name for other in session.items[session.items.index(item) + 1 :]]
        if rest and 0 < self._total_timeout < monotonic() - self._began:
            limit = f"all checks together may take {self._total_timeout:g} s"
            session.shouldfail = f"not run, since {limit}: {', '.join(rest)}"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note which signal stopped the run."""
        self._interrupted = getattr(excinfo.value, "exit_code", self._interrupted)

    def pytest_report_teststatus(self, report: pytest.TestReport, config: pytest.Config) -> object:
        """Put the time and the summary of a check beside its outcome. Failures of one cause count once."""
        if report.when != "call":
            return None
        name, outcome = report.nodeid, "xfailed" if hasattr(report, "wasxfail") else str(report.outcome)
        beside = "" if report.skipped else self._checks[name].summary  # pytest adds why it was skipped
        first = findings_of(self._subject).first_of(name)
        if first != name:
            outcome, beside = "same cause", f"as {first}"
        terminal = config.get_terminal_writer()
        if terminal.hasmarkup:
            beside = textwrap.shorten(beside, max(terminal.fullwidth - _SUMMARY_AT, 20), placeholder=" ...")
        word = f"{outcome:<11}{report.duration:5.1f}   {beside}".rstrip()
        return outcome, outcome[0], " " * (_NAME_WIDTH - len(name)) + word

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what limits the verdict: what was shortened and left out."""
        shortened = findings_of(self._subject).shortened
        notes = [f"  {what}: {', '.join(names)}" for what, names in shortened.items()]
        if notes:
            notes.insert(0, f"\nshortened: fewer texts and samples, since {self._subject.effort.why}")
        if self._left_out:
            notes.append(f"\nleft out by the quick run: {', '.join(self._left_out)}")
        for note in notes:
            terminalreporter.write_line(note)


class _Checks(pytest.Collector):
    """Collects the checks.

    Args:
        runs: The body of the test of each.
    """

    def __init__(self, *, runs: Mapping[str, Callable[[], None]], **node: Any) -> None:
        super().__init__(**node)
        self._runs = runs

    def collect(self) -> Iterator[pytest.Item]:
        for name, run in self._runs.items():
            yield cast("pytest.Item", _CheckTest.from_parent(self, name=name, nodeid=name, run=run))


class _CheckTest(pytest.Item):
    """The test of one check."""

    def __init__(self, *, run: Callable[[], None], **node: Any) -> None:
        super().__init__(**node)
        self._run = run

    def runtest(self) -> None:
        self._run()

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.nodeid
