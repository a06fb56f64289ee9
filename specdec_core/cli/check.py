"""`specdec check`: whether an installed plugin does what the border asks of it."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from specdec_core.cli.console import error_console, output_console
from specdec_core.testing.choosing import parse_assignments, parse_plugin

if TYPE_CHECKING:
    from specdec_core.testing import KitReport

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "expected": "yellow", "optional": "yellow"}


def check(
    plugin: Annotated[str, Argument(help="Kind and name, e.g. drafter:prompt-copy.", metavar="KIND:NAME")],
    settings: Annotated[
        list[str] | None,
        Option("--set", help="A setting of the plugin, e.g. min_match=2; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Run this check only; may be repeated.", metavar="CHECK")
    ] = None,
    require: Annotated[
        list[str] | None, Option(help="Let this optional check count; may be repeated.", metavar="CHECK")
    ] = None,
    seed: Annotated[int, Option(help="Of all random numbers that the checks use.")] = 0,
    device: Annotated[str, Option(help="Where the targets compute that it is tried with: cpu or cuda.")] = "cpu",
) -> None:
    """Judge an installed plugin by the conformance kit: small named checks, on targets of six token ids.

    Of a check that fails, it says what was done, what came back and what was expected. Optional checks are run and
    reported, and count where --require says so. The same checks run under pytest: pytest --specdec KIND:NAME.

    Exit codes: 0 nothing failed; 1 a check failed; 2 there is no such plugin, setting, check or device.

    For example:

    ```
    specdec check drafter:prompt-copy
    specdec check drafter:prompt-copy --set min_match=2 --only lossless
    specdec check gamma:fixed --set gamma=3
    ```
    """
    kind, name = parse_plugin(plugin, "specdec check")
    errors = error_console()
    with errors.status("running the checks") if errors.is_terminal else nullcontext():
        from specdec_core.testing import named, run_checks

        subject = named(kind, name, parse_assignments(settings or ()), seed=seed, device=device)
        report = run_checks(subject, select=only or (), require=require or ())
    _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: "KitReport") -> None:
    console = output_console()
    table = Table(header_style="bold")
    for heading in ("check", "outcome", "seconds", "what it proves"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for one in report.results:
        about = one.message if one.outcome == "skipped" else one.check.summary
        cells = one.check.name, one.outcome, f"{one.seconds:.1f}", about
        table.add_row(
            *(Text(cell, style=_STYLES[one.outcome] if place == 1 else "") for place, cell in enumerate(cells))
        )
    console.print(table)
    for one in report.failures:
        console.print(f"\n{one.check.name}: {one.check.summary}", style="bold", markup=False, soft_wrap=True)
        console.print(one.message, markup=False, soft_wrap=True)
    counts = [f"{n} {outcome}" for outcome, n in report.counts.items() if n]
    console.print(f"\n{', '.join(counts)} in {sum(one.seconds for one in report.results):.0f} s", markup=False)
