"""`specdec compare`: run a study and compare its drafters."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specdec_core.cli.common import (
    MaxRuns,
    PluginTimeout,
    Quiet,
    Ray,
    Settings,
    StudyFile,
    Wide,
    error_console,
    output_console,
)
from specdec_core.study import MAX_RUNS, Comparison, Study, load_study
from specdec_core.study import compare as run_comparison
from specdec_core.study.progress import StageProgress


def compare(
    study: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for results; a stopped study resumes from it.", metavar="DIR"),
    ] = None,
    settings: Settings = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the results that an earlier study left in DIR.")
    ] = False,
    plugin_timeout: PluginTimeout = None,
    max_runs: MaxRuns = MAX_RUNS,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="Give each run a process of its own: a crash or a leak costs that run only. Each loads the "
            "target, so memory is needed for one target more than there are drafters.",
        ),
    ] = False,
    ray: Ray = None,
    wide: Wide = False,
    quiet: Quiet = False,
) -> None:
    """Run a study: compare every drafter with the autoregressive baseline, and print a table.

    The baseline is in the first row. Runs take turns in random order and are repeated, so that drift of the
    machine favours none of them. Outputs are compared with those of the baseline, and scored if the prompts have
    references. The verdict names the fastest run, or the runs that cannot be told apart, and warns of timings that
    are too noisy.

    With --output, the folder receives `results.jsonl` (one object per run), `summary.csv`, `outputs.jsonl` (the
    generated texts), `report.html` (charts and tables) and `repeats.jsonl`, from which the same command resumes
    after it was stopped.

    Exit codes: 0 success; 1 a plugin failed while it decoded, or a lossless run at temperature 0 departs from the
    baseline; 2 an error that you can fix, or a run that ended early; 130 stopped with Ctrl-C, and
    128 + n with another signal n.

    For example:

    ```
    specdec compare examples/quickstart.yaml
    specdec compare study.yaml --output results
    specdec compare study.yaml --set repeats=1 --set runs.0.gamma=2
    specdec compare study.yaml --ray
    ```
    """
    loaded = load_study(study, settings or (), max_runs=max_runs)
    result = _run(replace(loaded, plugin_timeout=plugin_timeout), output, fresh, isolate, ray, quiet)
    _show(result, quiet, wide)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _run(
    study: Study, output: Path | None, fresh: bool, isolate: bool, ray: str | None, quiet: bool
) -> Comparison:
    with StageProgress(error_console(), quiet=quiet) as progress:
        return run_comparison(study, output, fresh=fresh, isolate=isolate, ray=ray, progress=progress)


def _show(result: Comparison, quiet: bool, wide: bool) -> None:
    """Print the results on standard output, and why runs could not start on standard error."""
    console, errors = output_console(wide=wide), error_console()
    for part in result.printed():
        console.print(part)
    if result.files and not quiet:
        errors.print(f"written: {', '.join(map(str, result.files))}", soft_wrap=True)
    for line in result.errors:
        errors.print(line, style="red", soft_wrap=True)
