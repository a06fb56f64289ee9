"""`specdec compare`: run a study and compare its drafters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specdec_core.cli.options.shared_options import Machines, StudyFile, shown_progress
from specdec_core.cli.options.study_options import ResultOptions, StudyOptions, grouped
from specdec_core.cli.terminal.console import error_console, output_console
from specdec_core.costs.measurement import read_measurement
from specdec_core.costs.step_costs import Machine
from specdec_core.interface.errors import ConfigError
from specdec_core.study import Comparison
from specdec_core.study import compare as run_comparison


@dataclass(frozen=True, kw_only=True)
class _Mode:
    """How the runs are run: here, or replayed."""

    record: Annotated[
        str | None,
        typer.Option(help="Replay the study on a record.", metavar="RECORD"),
    ] = None
    machine: Machines = None
    forecast: Annotated[
        Path | None,
        typer.Option(
            help="Results of `specdec replay` that forecast the runs with `engine`.  [default: a run here with "
            "the same drafter and gamma]",
            metavar="DIR",
        ),
    ] = None


@grouped
def compare(
    *,
    study: StudyFile,
    results: ResultOptions,
    mode: _Mode,
    how: StudyOptions,
) -> None:
    """Run a study: compare every drafter with plain decoding, the baseline, and print a table.

    Runs take turns in random order and are repeated, so that drift of the machine does not favor any. The verdict
    names the fastest run, or those that cannot be told apart. Outputs are compared with those of the baseline, and
    scored if the prompts have references.

    With --output, the folder receives `results.jsonl` (one object per run), `summary.csv`, `outputs.jsonl` (the
    generated texts), `report.html` (charts and tables) and `repeats.jsonl`, from which the same command resumes.

    `--set timing=false` measures acceptance alone. With --record, nothing is decoded: runs are replayed.

    `--set deploy=vllm` decodes by vLLM's rules, and ends with the command that serves the best drafter there, and
    the figures to expect of vLLM's metrics. With --output, the drafter is exported to that folder.

    Exit code 1: a plugin failed while it decoded, or a lossless run at temperature 0 departs from the baseline.
    Exit code 2: also if a run ended early.

    For example:

    ```
    specdec compare examples/quickstart.yaml
    specdec compare study.yaml --output results
    specdec compare study.yaml --set repeats=1 --set runs.0.gamma=2
    specdec compare study.yaml --ray
    specdec compare examples/replay.yaml --record builtin:code
    specdec compare study.yaml --set deploy=vllm --output results
    ```
    """
    if mode.machine and mode.record is None:
        raise ConfigError("--machine: a study that runs is timed here. Give --record too, or leave it out.")
    if mode.forecast is not None and mode.record is not None:
        raise ConfigError("--forecast: a replay is a forecast. Leave it out, or --record.")
    loaded = how.load(study)
    with shown_progress(quiet=how.quiet, loads=False) as progress:
        if mode.record is None:
            result = run_comparison(
                loaded,
                results.output,
                fresh=results.fresh,
                ray=how.ray,
                forecast=mode.forecast,
                progress=progress,
            )
        else:
            from specdec_core.offline.replay.comparison import replay

            result = replay(
                mode.record,
                loaded,
                machines=read_machines(mode.machine or (), mode.record),
                output=results.output,
                fresh=results.fresh,
                ray=how.ray,
                progress=progress,
            )
    below = None
    if loaded.config.deploy is not None:
        from specdec_core.serving.deployment import deployment

        below = "\n\n".join(deployment(result, results.output))
    show(result, how, below)


def read_machines(paths: Sequence[Path], record: str | None) -> list[Machine]:
    """Return the machines of some files of `specdec measure --output`, and say which measured another target.

    Args:
        paths: The files.
        record: The record that is replayed.

    Raises:
        ConfigError: A file cannot be read, or is not a measurement, or the record does not exist.
    """
    if not paths or record is None:
        return []
    from specdec_core.offline.record.store import read_record

    recorded = read_record(record).header.target.model
    measured = {path: read_measurement(path) for path in paths}
    for path, one in measured.items():
        if one.target != recorded:
            note = f"{path}: speeds are those of {one.target}, and the texts are those of {recorded}."
            error_console().print(note, style="yellow", soft_wrap=True)
    return [one.machine(path.stem) for path, one in measured.items()]


def show(result: Comparison, how: StudyOptions, below: str | None = None) -> None:
    """Print the results on standard output, any text below them, and why runs could not start on standard error.

    Raises:
        Exit: The exit code is not 0.
    """
    console, errors = output_console(wide=how.wide), error_console()
    for part in result.printed(wide=how.wide):
        console.print(part)
    if below is not None:
        console.print("\n" + below, markup=False, soft_wrap=True)
    if result.files and not how.quiet:
        errors.print(f"written: {', '.join(map(str, result.files))}", soft_wrap=True)
    for line in result.errors:
        errors.print(line, style="red", soft_wrap=True)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
