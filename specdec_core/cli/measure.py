"""`specdec measure`: measure alpha, c and T(k) of drafters, without decoding speculatively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from specdec_core.cli.options.shared_options import (
    Quiet,
    Settings,
    Wide,
    error_console,
    output_console,
    quieten_libraries,
    shown_progress,
    validated,
)
from specdec_core.cli.options.study_options import TaskOptions, given, grouped, study_of
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output, input_path
from specdec_core.measurement.entries import entries_of
from specdec_core.measurement.measurement_file import (
    DrafterEntry,
    Measurement,
    MeasureSettings,
    read_measurement,
    write_measurement,
)
from specdec_core.registry import default_registry
from specdec_core.study import Study, Task

if TYPE_CHECKING:
    from specdec_core.measurement.measure import MeasureContext


@dataclass(frozen=True, kw_only=True)
class _TaskOptions(TaskOptions):
    """The prompts of a target."""

    batch_size: Annotated[
        int | None, Option(help="Prompts decoded together while steps are timed.  [default: 1]")
    ] = None


@dataclass(frozen=True, kw_only=True)
class _MeasureOptions:
    """The settings of a measurement; each option is a field of `MeasureSettings`."""

    tokens: Annotated[int | None, Option(help="Target tokens at which drafts are verified.  [default: 10000]")] = (
        None
    )
    temperature: Annotated[
        list[float] | None, Option(help="Sampling temperature, 0 is greedy; may be repeated.  [default: 0 and 1]")
    ] = None
    lenience: Annotated[
        list[float] | None, Option(help="Lenience l in (0, 1], 1 is lossless; may be repeated.  [default: 1]")
    ] = None
    gamma: Annotated[int | None, Option(help="Tokens per draft at most.  [default: 8]")] = None
    ranks: Annotated[
        int | None,
        Option(help="Siblings to draft at each depth of a tree, for `optimal-tree`; 0 for none.  [default: 0]"),
    ] = None
    rows: Annotated[
        int | None, Option(help="Prompts decoded together while acceptance is measured.  [default: 8]")
    ] = None
    timings: Annotated[int | None, Option(help="Number of timings of each draft length.  [default: 20]")] = None


@dataclass(frozen=True)
class _Job:
    """A measurement.

    Attributes:
        task: The target and its prompts.
        folder: Base for relative paths.
        entries: The drafters.
        settings: What to measure, and how.
    """

    task: Task
    folder: Path
    entries: tuple[DrafterEntry, ...]
    settings: MeasureSettings


@grouped
def measure(
    *,
    study: Annotated[
        Path | None, Argument(help="YAML file of a study with the target, prompts and drafters.")
    ] = None,
    drafter: Annotated[
        list[str] | None, Option(help="A drafter: a name, or YAML with its settings; may be repeated.")
    ] = None,
    options: _TaskOptions,
    how: _MeasureOptions,
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

    The drafter proposes a draft at each token of the target's text. The acceptance rate alpha is the mean of
    sum min(p, q) over these tokens (section 4.2), with a 95% confidence interval. Then steps with drafts of every
    length are timed.

    Controllers read the file of --output, from which the same command resumes.

    For example:

    ```
    specdec measure --tokens 2000 \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec measure --drafter prompt-copy --lenience 1 --lenience 0.5
    specdec measure examples/quickstart.yaml --task temperature-1 \
        --output results/measured.json
    ```
    """
    # Another gamma tells a run from the others; it plays no part.
    runs: list[dict[str, str | int]] = [
        {"drafter": text, "gamma": number} for number, text in enumerate(drafter or (), start=1)
    ]
    if study is None and not runs:
        raise ConfigError("no drafter: name one with --drafter (`specdec plugins` lists them), or pass a study.")
    loaded = study_of(study, options, settings=settings, task=[task] if task else (), runs=runs, beside=_BESIDE)
    job = _job(loaded, _only_task(loaded, task), options, how)
    if output is None:
        _measure(job, None, None, quiet, wide)
        return
    unfinished = None if overwrite else _unfinished(output)
    check_output(output, overwrite or unfinished is not None)
    _measure(job, output, unfinished, quiet, wide)


_BESIDE = ("batch_size", "max_new_tokens", "seed")
"""Options that have a meaning beside a study, whose settings they override."""


def _only_task(study: Study, name: str | None) -> Task:
    """Return the only task of a study, or the named one."""
    tasks = study.chosen([name] if name else ())
    if len(tasks) > 1:
        names = ", ".join(str(task.name) for task in tasks)
        raise ConfigError(f"{study.path} has {len(tasks)} tasks; choose one with --task: {names}.")
    return tasks[0]


def _job(study: Study, task: Task, options: _TaskOptions, how: _MeasureOptions) -> _Job:
    """Return what is measured; options override the settings of a study."""
    if task.generation.constraint is not None:
        raise ConfigError(
            task.with_task("constraint: `measure` decodes without one; remove it, or use `specdec compare`.")
        )
    named = {run.name for config, run in zip(study.config.runs, study.runs[1:], strict=True) if config.name}
    settings = {
        "batch_size": study.config.batch_size,
        "max_new_tokens": task.generation.max_new_tokens,
        "ignore_eos": task.generation.ignore_eos,
        "seed": task.generation.seed,
        "lenience": _leniences(task),
        **{name: value for name, value in options.given().items() if name in _BESIDE},
        **{name: tuple(dict.fromkeys(v)) if isinstance(v, list) else v for name, v in given(how).items()},
    }
    return _Job(
        task,
        study.folder,
        tuple(entries_of(task.runs[1:], named).values()),
        validated(MeasureSettings, settings),
    )


def _leniences(task: Task) -> list[float]:
    """Return 1 and every constant lenience of a task's runs, in descending order."""
    labels = [run.labels.lenience for run in task.runs]
    numbers = {float(label) for label in labels if isinstance(label, (int, float))}
    return sorted({1.0, *(value for value in numbers if 0 < value <= 1)}, reverse=True)


def _unfinished(output: Path) -> Measurement | None:
    """Return the measurement in a file if it lacks a drafter."""
    if not input_path(output.absolute()).is_file():
        return None
    try:
        found = read_measurement(output)
    except ConfigError:
        return None  # not a measurement; `check_output` does not replace it
    return None if found.finished else found


def _measure(job: _Job, output: Path | None, before: Measurement | None, quiet: bool, wide: bool) -> None:
    """Measure, write and print what is finished, and report failures."""
    errors = error_console()
    latest: list[Measurement] = []

    def keep(measurement: Measurement) -> None:
        latest[:] = [measurement]
        if output is not None:
            write_measurement(output, measurement)

    try:
        with shown_progress(quiet=quiet) as progress:
            progress.stage("loading torch and the target")
            context = _context(job)
            from specdec_core.measurement.measure import measure as measure_drafters

            _, failed = measure_drafters(context, job.entries, progress, before=before, keep=keep)
    except KeyboardInterrupt as stopped:
        _show(latest, job, wide)
        stopped.args = (_stopped(latest, output),)
        raise
    _show(latest, job, wide)
    if output is not None and latest and not quiet:
        errors.print(f"written: {output}", soft_wrap=True)
    for name, reason in failed.items():
        errors.print(f"{name} failed: {reason}", style="red", soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def _context(job: _Job) -> MeasureContext:
    from specdec_core.measurement.measure import MeasureContext
    from specdec_core.study.run.factory import load_target

    quieten_libraries()
    target = load_target(job.task.target, job.folder)
    return MeasureContext.of_task(job.task, target, job.settings, default_registry(), job.folder)


def _show(latest: Sequence[Measurement], job: _Job, wide: bool) -> None:
    from specdec_core.measurement.table import drafter_report

    console = output_console(wide=wide)
    for measurement in latest:
        for one in measurement.drafters:
            console.print(drafter_report(one, measurement.batch_size, job.settings.tokens))


def _stopped(latest: Sequence[Measurement], output: Path | None) -> str:
    done = len(latest[0].drafters) if latest else 0
    if output is None or not done:
        return "stopped." if done else "stopped before a drafter was finished; nothing was stored."
    return f"stopped; {done} drafter(s) are stored in {output}. Run the same command again to resume."
