"""`specdec diff`: what changed between two results of a study."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specdec_core.cli.options.shared_options import AsJson, Wide, output_console, print_json
from specdec_core.interface.errors import ConfigError
from specdec_core.study.config.study import with_task
from specdec_core.study.report.formats import number, rate
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.study.report.results_diff import (
    GroupChange,
    RunDifference,
    Speed,
    differences,
    read_results,
    shared_changes,
)

_STYLES = {"faster": "green", "slower": "red"}
_UNLIKELY = 0.05


def diff(
    old: Annotated[
        Path, typer.Argument(help="Results before: a folder that `specdec compare --output` wrote.", metavar="OLD")
    ],
    new: Annotated[Path, typer.Argument(help="Results after, of the same study.", metavar="NEW")],
    by: Annotated[
        Speed,
        typer.Option(
            help="The speed to compare: the speedup over the baseline, comparable between machines; or "
            "tokens_per_second."
        ),
    ] = "speedup",
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 if a run fails that did not, or is slower by more than this share (5%, or 0.05), "
            "beyond the spread of its repeats.",
            metavar="SHARE",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show what changed between two results of a study: settings, speeds, acceptance.

    A run is faster or slower if the intervals of its speed do not overlap: the range of up to eight repeats, the
    95% confidence interval of the median of more.

    For example:

    ```
    specdec diff results/before results/after
    specdec diff results/before results/after --fail-if-slower 5%
    ```
    """
    tolerance = None if fail_if_slower is None else _share(fail_if_slower)
    before, after = read_results(old), read_results(new)
    found = differences(before, after, by)
    slower = [one for one in found if tolerance is not None and one.regressed(tolerance)]
    shared = shared_changes(before, after)
    if as_json:
        print_json(
            {"changed": shared, "runs": [asdict(one) for one in found], "failed": [_name(one) for one in slower]}
        )
    else:
        _show(found, shared, by, wide=wide)
    if slower:
        console = output_console(wide=wide)
        if not as_json:
            names = ", ".join(map(_name, slower))
            console.print(Prose(f"Slower by more than {tolerance:.0%}, or failed: {names}", "red"))
        raise typer.Exit(1)


def _show(found: list[RunDifference], shared: dict[str, tuple[object, object]], by: Speed, *, wide: bool) -> None:
    console = output_console(wide=wide)
    for path, (first, second) in shared.items():
        console.print(Prose(f"{path}: {first} -> {second}", "yellow"))
    digits, unit = (2, "×") if by == "speedup" else (1, "")
    columns = (
        Column("run", numeric=False),
        Column("before"),
        Column("after"),
        Column("ratio"),
        Column("alpha\nbefore", spare=2),
        Column("alpha\nafter", spare=1),
        Column("", numeric=False),
    )

    def row(name: str, one: RunDifference | GroupChange, notes: str) -> Row:
        speeds = (number(speed, digits, unit) for speed in one.speed)
        rates = (rate(alpha) for alpha in one.alpha)
        return Row((name, *speeds, number(one.ratio, 3), *rates, notes), _STYLES.get(one.verdict, ""))

    rows = [row(_name(one), one, _notes(one)) for one in found]
    console.print(for_terminal(ReportTable(columns, tuple(rows))))
    groups = [(f"{_name(one)}, {group.group}", group) for one in found for group in one.groups]
    changed = tuple(row(name, group, _changes(group)) for name, group in groups if group.changed)
    if changed:
        console.print(for_terminal(ReportTable(columns, changed, title="Groups of prompts that changed")))
    elif groups:
        console.print(Prose("No group of prompts changed."))
    for one in found:
        for path, (first, second) in one.settings.items():
            console.print(Prose(f"{_name(one)}: {path}: {first} -> {second}"))
    likely = max((one.chance for one in found if one.chance is not None), default=0.0)
    if likely > _UNLIKELY:
        text = (
            f"With so few repeats, intervals are apart by chance in {likely:.0%} of comparisons: take 5 or more."
        )
        console.print(Prose(text, "yellow"))


def _name(one: RunDifference) -> str:
    return with_task(one.task, one.name)


def _notes(one: RunDifference) -> str:
    before, after = one.status
    if before is None or after is None:
        return "new" if before is None else "gone"
    notes = [] if before == after else [f"{before} -> {after}"]
    return ", ".join([*notes, *filter(None, [_changes(one)])])


def _changes(one: RunDifference | GroupChange) -> str:
    notes = [one.verdict] if one.verdict in _STYLES else []
    return ", ".join([*notes, *(["accepts otherwise"] if one.accepts_otherwise else [])])


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ConfigError(f"--fail-if-slower {text}: expected a share from 0% to 100%, such as 5% or 0.05.")
    return value
