"""`specdec profile`: the acceptance of a drafter by position, in a file that travels with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_core.cli.options.shared_options import (
    AsJson,
    Quiet,
    Wide,
    output_console,
    print_json,
    shown_progress,
)
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output
from specdec_core.offline.profile import SpeculationProfile, read_profile, speculation_profile, write_profile
from specdec_core.offline.record.format import HEADER
from specdec_core.registry import shipped_file
from specdec_core.study.config.yaml_source import parse_value
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.study.run.folder import RESULTS

if TYPE_CHECKING:
    from specdec_core.offline.profile import Measured

_GAMMA = 8


def profile(
    source: Annotated[
        str,
        typer.Argument(
            help="A record to replay the drafter on, such as builtin:code; a folder of results; a log of "
            "responses, .jsonl; or a profile to show, .json.",
            metavar="RECORD|RESULTS|LOG|PROFILE",
        ),
    ],
    drafter: Annotated[
        str | None, typer.Option(help="With a record, the drafter: a name, or YAML with its settings.")
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(help=f"With a record, the largest gamma.  [default: {_GAMMA}]", min=1, max=1000)
    ] = None,
    run: Annotated[str | None, typer.Option(help="With results of several drafters, a run of one.")] = None,
    task: Annotated[str | None, typer.Option(help="The task, if there are several.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the profile.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Write how often the tokens of a drafter are accepted by position: `speculation_profile.json`, schema 1.0.

    Dynamo's mocker, the synthetic acceptance of vLLM and tools for planning read this file, which lies beside the
    weights of a drafter. Rates are over the steps with a draft, at the largest gamma.

    For example:

    ```
    specdec profile builtin:code --task temperature-1 --drafter prompt-copy
    specdec profile results/after --output speculation_profile.json
    ```
    """
    if output is not None:
        check_output(output, overwrite)
    found = _profile(source, drafter, gamma, run, task, quiet=quiet)
    if output is not None:
        write_profile(found, output)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    console = output_console(wide=wide)
    console.print(for_terminal(_table(found)))
    for line in _lines(found):
        console.print(Prose(line))
    if output is not None:
        console.print(f"written: {output}", soft_wrap=True)


def _profile(
    source: str, drafter: str | None, gamma: int | None, run: str | None, task: str | None, *, quiet: bool
) -> SpeculationProfile:
    path = Path(source)
    recorded = shipped_file(source, "record", HEADER) is not None or (path / HEADER).is_file()
    _refuse("is for records", recorded, drafter=drafter, gamma=gamma)
    if recorded:
        _refuse("is for results", allowed=False, run=run)
        if drafter is None:
            raise ConfigError(f"{source} is a record; name the drafter that is replayed on it: --drafter NAME.")
        return speculation_profile(_on_record(source, drafter, gamma or _GAMMA, task, quiet=quiet))
    if path.is_dir() or path.name == RESULTS:
        from specdec_core.offline.profile import measured_in_study

        return speculation_profile(measured_in_study(path, run, task))
    _refuse("is for results", allowed=False, run=run, task=task)
    if path.suffix == ".json":
        return read_profile(path)
    from specdec_core.offline.profile import measured_in_log

    return speculation_profile(measured_in_log(path))


def _refuse(why: str, allowed: bool, **options: object) -> None:
    for name, value in options.items():
        if value is not None and not allowed:
            raise ConfigError(f"--{name} {value} {why}; omit it.")


def _on_record(source: str, drafter: str, gamma: int, task: str | None, *, quiet: bool) -> Measured:
    from specdec_core.offline.profile import measured_on_record
    from specdec_core.offline.record import read_record

    chosen = parse_value(drafter, "--drafter")
    with shown_progress(quiet=quiet) as progress:
        return measured_on_record(read_record(source), chosen, max_gamma=gamma, task=task, progress=progress)


def _table(found: SpeculationProfile) -> ReportTable:
    lengths = found.accept_lengths()
    intervals = (found.measurement_conditions or {}).get("accept_length_intervals_by_k") or {}
    conditional, marginal = found.conditional_accept_rates or (), found.marginal_accept_rates or ()
    rows = []
    for k in range(1, found.num_speculative_tokens + 1):
        ends = intervals.get(str(k))
        rates = (number(rate[k - 1] if rate else None, 3) for rate in (conditional, marginal))
        spread = "" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
        rows.append(Row((str(k), *rates, number(lengths.get(k), 2), spread)))
    columns = (
        Column("position,\nγ"),
        Column("conditional\nrate", note="Conditional: the token is accepted if those before it are."),
        Column("marginal\nrate", note="Marginal: the draft is accepted up to here."),
        Column("acceptance\nlength", note="Acceptance length with this γ: tokens per step with a draft."),
        Column("95% interval", spare=1, numeric=False),
    )
    return ReportTable(columns, tuple(rows), title=found.method)


def _lines(found: SpeculationProfile) -> Iterator[str]:
    for category, figures in (found.per_category or {}).items():
        yield f"{category}: acceptance length {figures['mean_accept_length']:.2f}"
    if found.validation is None:
        yield f"No rates: {found.vectors_unavailable_reason}"
        return
    mean, falling = found.validation.mean_consistency, found.validation.marginal_monotonicity
    if mean.passed and falling.passed:
        yield "Both checks hold: the marginal rates never increase, and their sum + 1 is the acceptance length."
    if not falling.passed:
        yield f"The marginal rates increase at {len(falling.violations)} position(s): the counts are not right."
    if not mean.passed:
        reported, implied = mean.reported_mean_accept_length, mean.implied_mean_accept_length
        yield f"The acceptance length is {reported:.3f}, but the rates give {implied:.3f}."
    if found.accept_length_model == "chain_analytic":
        yield "chain_analytic: the rates give the acceptance length of every γ."
    else:
        yield "measured_per_k: the rates are those of the largest γ; another γ has the length measured with it."
