"""`specdec check`: the conformance kit on an installed plugin."""

import io
import sys
import textwrap
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from specdec_core.cli.common import output_console
from specdec_core.testing.limits import TIMEOUT, TOTAL_TIMEOUT
from specdec_core.testing.selection import parse_assignments, parse_plugin

if TYPE_CHECKING:
    from specdec_core.testing import Check, KitReport, Result

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "expected": "yellow", "optional": "yellow"}
_NAME_WIDTH, _ABOUT_AT = 27, 44
"""Width of the names of checks, and the column of what stands beside the outcome."""


def check(
    plugin: Annotated[str, Argument(help="Kind and name, e.g. drafter:prompt-copy.", metavar="KIND:NAME")],
    settings: Annotated[
        list[str] | None,
        Option("--set", help="A setting of the plugin, e.g. min_match=2; can be repeated.", metavar="KEY=VALUE"),
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Run only this check; can be repeated.", metavar="CHECK")
    ] = None,
    require: Annotated[
        list[str] | None, Option(help="Make this optional check count; can be repeated.", metavar="CHECK")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Leave out the slow checks, and try fewer texts and samples in the others.")
    ] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Show every failure in full, optional checks included.")
    ] = False,
    timeout: Annotated[
        float, Option(min=0, help="Stop a check that takes longer; 0 for no limit.", metavar="SECONDS")
    ] = TIMEOUT,
    total_timeout: Annotated[
        float, Option(min=0, help="Run no further checks after this time; 0 for no limit.", metavar="SECONDS")
    ] = TOTAL_TIMEOUT,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
    device: Annotated[str, Option(help="Device of the targets that it is checked on: cpu or cuda.")] = "cpu",
) -> None:
    """Run the conformance kit on an installed plugin: small named checks, on targets with six token ids.

    A check that fails reports what it did, what came back and what it expected. Checks that fail with the same
    cause are named together. Optional checks count only with --require. If the plugin is slow, checks try fewer
    texts and samples, and the end says which. To run the same checks under pytest: pytest --specdec KIND:NAME.

    Exit codes: 0 nothing failed; 1 a check failed, or was not run for lack of time; 2 there is no such plugin,
    setting, check or device; 130 stopped with Ctrl-C.

    For example:

    ```
    specdec check drafter:prompt-copy
    specdec check drafter:prompt-copy --set min_match=2 --only lossless
    specdec check drafter:prompt-copy --quick
    specdec check gamma:fixed --set gamma=3
    ```
    """
    kind, name = parse_plugin(plugin, "specdec check")
    listing = _Listing(verbose=verbose)
    from specdec_core.testing import KitReport, named, run_checks

    subject = named(kind, name, parse_assignments(settings or ()), seed=seed, device=device)
    try:
        with redirect_stdout(listing.printed):
            report = run_checks(
                subject,
                select=only or (),
                require=require or (),
                quick=quick,
                timeout=timeout,
                total_timeout=total_timeout,
                on_start=listing.start,
                on_result=listing.add,
            )
    except KeyboardInterrupt:
        listing.end(KitReport(tuple(listing.results)))
        raise
    listing.end(report)
    if not report.passed:
        raise typer.Exit(1)


class _Listing:
    """Prints a line for each check, the name as soon as it runs, and the failures at the end.

    Attributes:
        results: The results so far.
        printed: Takes what the plugin prints, which would break the lines.
    """

    def __init__(self, *, verbose: bool) -> None:
        self.results: list[Result] = []
        self.printed = _Printed()
        self._verbose = verbose
        self._runs = False
        self._console = output_console()
        self._console.file = sys.stdout  # also while the standard output is redirected

    def start(self, one: "Check") -> None:
        """Print the name of the check that runs now."""
        self._runs = True
        self._console.print(Text(f"{one.name:<{_NAME_WIDTH}}"), end="")
        self._console.file.flush()

    def add(self, result: "Result") -> None:
        """Print the outcome beside the name."""
        self.results.append(result)
        self._runs = False
        line = Text(f"{result.outcome:<9}", style=_STYLES[result.outcome])
        line.append(f"{result.seconds:5.1f}   ", style="none")
        self._console.print(line, end="")
        # What an optional check is for, and why one was skipped or failed, is never cut.
        short = result.outcome == "passed" and result.required and not self._verbose
        self._console.print(_beside(self._console, _about(result), one_line=short), markup=False, soft_wrap=True)

    def end(self, report: "KitReport") -> None:
        """Print the failures, what limits the verdict, and the number of checks with each outcome."""
        if self._runs:
            self._console.print("stopped")
        for text in (*report.told(verbose=self._verbose), *report.notes(), *self.printed.notes()):
            first, newline, rest = text.partition("\n")
            self._console.print(f"\n{first}", style="bold", markup=False, soft_wrap=True)
            if newline:
                self._console.print(rest, markup=False, soft_wrap=True)
        counts = [f"{n} {outcome}" for outcome, n in report.counts.items() if n]
        counts += [f"{len(report.not_run)} not run"] * bool(report.not_run)
        seconds = sum(one.seconds for one in report.results)
        self._console.print(f"\n{', '.join(counts) or 'no check ended'} in {seconds:.0f} s", markup=False)


def _about(result: "Result") -> str:
    """Return what stands beside an outcome: what was checked, or why it does not count."""
    purpose = f"optional, {result.check.purpose}" if not result.required else ""
    if result.outcome == "optional":
        return f"failed; {purpose}; see --verbose"
    if result.outcome in ("skipped", "expected"):
        return f"{result.message} ({purpose})" if purpose else result.message
    return f"{result.check.summary} ({purpose})" if purpose else result.check.summary


def _beside(console: Console, text: str, *, one_line: bool) -> str:
    """Return text that is wrapped or cut beside the outcome; as it is where nobody looks at the width."""
    if not console.is_terminal:
        return text
    width = max(console.width - _ABOUT_AT, 20)
    if one_line:
        return textwrap.shorten(text, width, placeholder=" ...")
    indent = " " * _ABOUT_AT
    return f"\n{indent}".join(textwrap.wrap(text, width, break_long_words=False))


class _Printed(io.TextIOBase):
    """Counts the lines that a plugin prints, and keeps the first."""

    def __init__(self) -> None:
        self._lines, self._first = 0, ""

    def write(self, text: str) -> int:
        """Take some text."""
        if not self._lines:
            self._first = (self._first + text)[:200]
        self._lines += text.count("\n")
        return len(text)

    def notes(self) -> list[str]:
        """Return what was printed, if anything was."""
        first = self._first.strip().partition("\n")[0]
        if not first:
            return []
        return [
            f"printed by the plugin: {self._lines} line(s), the first {first!r}. Standard output is for results, "
            "such as those of --json: use the module `logging`."
        ]
