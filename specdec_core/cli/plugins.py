"""`specdec plugins`: what is installed."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from specdec_core.cli.console import output_console
from specdec_core.registry import PluginRecord, default_registry


def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """List plugins: drafters, controllers of gamma and lenience, trainers, and where each comes from.

    Broken plugins, and those whose name two distributions claim, are listed with the reason.
    The environment variable SPECDEC_PLUGINS names the only distributions or entry points to load,
    separated by commas.

    For example:

    ```
    specdec plugins
    specdec plugins --json
    SPECDEC_PLUGINS=specdec-core specdec plugins
    ```
    """
    records = default_registry().records()
    if as_json:
        typer.echo(json.dumps([asdict(record) for record in records], indent=2))
        return
    console = output_console()
    console.print(_table(records))
    for record in records:
        if record.reason:
            console.print(f"{record.name}: {record.reason}", markup=False, soft_wrap=True)


def _table(records: list[PluginRecord]) -> Table:
    table = Table(header_style="bold")
    for heading in ("kind", "name", "distribution", "version", "state", "summary"):
        table.add_column(heading)
    for record in records:
        style = None if record.state == "ready" else "dim" if record.state == "off" else "red"
        cells = (
            record.kind or "–",
            record.name,
            record.distribution,
            record.version,
            record.state,
            record.summary,
        )
        table.add_row(*map(Text, cells), style=style)
    return table
