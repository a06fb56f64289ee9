"""`specdec measure`: measure alpha, c and T(k) of drafters, without decoding speculatively."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Argument, Option

from specdec_core.cli.options.shared_options import Drafters, Quiet, Settings, Temperatures, Wide, shown_progress
from specdec_core.cli.options.study_options import TaskOptions, grouped, study_of
from specdec_core.cli.terminal.console import error_console, output_console
from specdec_core.costs.forecast import best_gamma, improvement_at_cost
from specdec_core.costs.measurement import Acceptance, DrafterMeasurement, Measurement, write_measurement
from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output
from specdec_core.study.report.formats import UNKNOWN, number, rate, share, visible
from specdec_core.study.report.layout import Column, ReportTable, Row
from specdec_core.theory.speed import optimal_gamma, walltime_improvement


@grouped
def measure(
    *,
    study: Annotated[
        Path | None, Argument(help="YAML file of a study with the target, prompts and drafters.")
    ] = None,
    drafter: Drafters = None,
    options: TaskOptions,
    temperature: Temperatures = None,
    gamma: Annotated[int, Option(min=1, max=1000, help="Tokens per draft at most.")] = 8,
    timings: Annotated[int, Option(min=1, help="Number of timings of each draft length.")] = 20,
    output: Annotated[
        Path | None, Option("--output", "-o", help="JSON file for the result.", metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    settings: Settings = None,
    task: Annotated[str | None, Option(help="Task of the study to measure, if it has several.")] = None,
    wide: Wide = False,
    quiet: Quiet = False,
) -> None:
    r"""Measure the acceptance rate, c and T(k) of drafters, and predict the speed-up and the best gamma.

    The target decodes the prompts alone, and each drafter is replayed on these texts. The acceptance rate alpha is
    the mean of sum min(p, q) over their tokens (section 4.2), with a 95% confidence interval over prompts. Steps
    with drafts of every length are timed.

    `specdec replay --machine` and the controller `optimal` read the file of --output.

    For example:

    ```
    specdec measure --drafter "{name: transformer, model: builtin:drafter}"
    specdec measure examples/quickstart.yaml --task temperature-1 \
        --output results/measured.json
    specdec measure --drafter prompt-copy --temperature 0.5
    ```
    """
    # Another gamma tells a run from the others; it plays no part.
    runs: list[dict[str, str | int]] = [
        {"drafter": text, "gamma": number} for number, text in enumerate(drafter or (), start=1)
    ]
    if study is None and not runs:
        raise ConfigError("no drafter: name one with --drafter (`specdec plugins` lists them), or pass a study.")
    loaded = study_of(study, options, settings=settings, task=[task] if task else (), runs=runs)
    tasks = loaded.chosen([task] if task else ())
    if len(tasks) > 1:
        names = ", ".join(str(one.name) for one in tasks)
        raise ConfigError(f"{loaded.path} has {len(tasks)} tasks; choose one with --task: {names}.")
    if output is not None:
        check_output(output, overwrite)

    def keep(measurement: Measurement) -> None:
        if output is not None:
            write_measurement(output, measurement)

    with shown_progress(quiet=quiet) as progress:
        from specdec_core.offline.measure import measure as measure_drafters

        found, failed = measure_drafters(
            replace(loaded, tasks=tasks),
            progress,
            temperatures=tuple(dict.fromkeys(temperature or (0.0, 1.0))),
            gamma=gamma,
            timings=timings,
            keep=keep,
        )
    console, errors = output_console(wide=wide), error_console()
    for one in () if found is None else found.drafters:
        for part in _report(one):
            console.print(part)
    if found is not None and output is not None and not quiet:
        errors.print(f"written: {output}", soft_wrap=True)
    for name, reason in failed.items():
        errors.print(f"{name} failed: {reason}", style="red", soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def _report(measured: DrafterMeasurement) -> Iterator[RenderableType]:
    """Yield the tables of a drafter."""
    yield Text(visible(f"{measured.name}: c = {number(measured.seconds.c, 3)}"), style="bold")
    yield _rates(measured)
    if any(len(one.by_position) > 1 for one in measured.acceptance):
        yield Text("Acceptance rate by position, if the tokens before it were accepted:")
        yield _positions(measured.acceptance)
    yield Text("Steps with a draft of k tokens:")
    yield _seconds(measured.seconds)
    yield Text()


def _rates(measured: DrafterMeasurement) -> ReportTable:
    step, c = measured.seconds.step, measured.seconds.c
    sparse = any(min(one.proposed) < 1 for one in measured.acceptance)
    columns = (
        Column("T"),
        Column("acceptance\nrate"),
        Column("95% interval", spare=2),
        Column("tokens", spare=6),
        *([Column("proposed", spare=5)] if sparse else []),
        Column("Theorem 3.8\nbest γ", spare=3),
        Column("Theorem 3.8\nexpected", spare=4),
        Column("measured T(k)\nbest γ", spare=1),
        Column("measured T(k)\nexpected"),
    )
    rows = []
    for one in measured.acceptance:
        rates, seconds = one.rates(len(step) - 1), one.mean_seconds(step)
        optimal, best = optimal_gamma(rates[0], c, len(step) - 1), best_gamma(rates, seconds)
        never = not any(one.proposed)
        cells = (
            f"{one.temperature:g}",
            UNKNOWN if never else rate(one.alpha, 3),
            UNKNOWN if never else f"{rate(one.low, 3)} to {rate(one.high, 3)}",
            f"{one.tokens:,}",
            *([share(one.proposed[0])] if sparse else []),
            str(optimal),
            number(walltime_improvement(rates[0], optimal, c), 2, "×"),
            str(best),
            number(improvement_at_cost(rates, best, seconds), 2, "×"),
        )
        rows.append(Row(cells))
    return ReportTable(columns, tuple(rows), unknown="the drafter proposed nothing")


def _positions(acceptance: Sequence[Acceptance]) -> ReportTable:
    longest = max(len(one.by_position) for one in acceptance)
    columns = map(Column, ("T", *map(str, range(1, longest + 1))))
    rows = []
    for one in acceptance:
        rates = [*map(rate, one.by_position), *([UNKNOWN] * (longest - len(one.by_position)))]
        rows.append(Row((f"{one.temperature:g}", *rates)))
    return ReportTable(tuple(columns), tuple(rows), unknown="no draft was that long")


def _seconds(seconds: StepCosts) -> ReportTable:
    rows = {
        "drafting, ms": [number(1000 * value, 2) for value in seconds.draft],
        "T(k), ms": [number(1000 * value, 2) for value in seconds.verify],
        "T(k) / T(0)": [number(value / seconds.verify[0], 2) for value in seconds.verify],
        "step, ms": [number(1000 * value, 2) for value in seconds.step],
    }
    columns = map(Column, ("k", *map(str, range(len(seconds.step)))))
    return ReportTable(tuple(columns), tuple(Row((name, *cells)) for name, cells in rows.items()))
