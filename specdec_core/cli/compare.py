"""`specdec compare`: run a study and say what each drafter is worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_core.cli.console import INTERRUPTED, error_console, output_console, quieten_libraries
from specdec_core.cli.options import Settings, StudyFile
from specdec_core.cli.progress import StudyProgress
from specdec_core.study import Study, load_study
from specdec_core.study.study import titled

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_core.study.runner import StudyResult
    from specdec_core.study.summary import RunSummary


def compare(
    study: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for results; a stopped study goes on from it.", metavar="DIR"),
    ] = None,
    settings: Settings = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier study left in DIR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run a study: time every drafter against plain decoding, and print a table.

    The baseline stands in the first row. Runs take turns and every one is repeated, so that a machine that
    grows slower favours none. Texts are compared with those of the baseline, and scored where prompts have
    references. With --output, the folder gets `results.jsonl` (one object a run), `summary.csv`, `outputs.jsonl`
    (the texts), `report.html` (all of it to read) and `repeats.jsonl`, from which the same command goes on when
    it was stopped.

    For example:

    ```
    specdec compare examples/quickstart.yaml
    specdec compare study.yaml --output results
    specdec compare study.yaml --set repeats=1 --set runs.0.gamma=2
    ```
    """
    result = _run(load_study(study, settings or ()), output, fresh, quiet)
    _show(result, output, quiet)
    if result.failed:
        raise typer.Exit(2)


def _show(result: "StudyResult", output: Path | None, quiet: bool) -> None:
    """Write and print the results, and say what went wrong in plugins."""
    from specdec_core.study.outputs import outputs_of
    from specdec_core.study.report import write_results
    from specdec_core.study.summary import summarise
    from specdec_core.study.table import by_task

    summaries = summarise(result)
    written = write_results(output, result.study, summaries, outputs_of(result)) if output is not None else []
    errors = error_console()
    for task in by_task(summaries):
        _show_task(task, output_console(), errors)
    if written and not quiet:
        errors.print(f"written: {', '.join(str(path) for path in written)}", markup=False, soft_wrap=True)
    for summary in summaries:
        for failure in summary.failures[:1]:
            count = sum(failure["times"] for failure in summary.failures)
            text = f"{summary.name}: {count} failure(s) of a plugin, the first: {failure['message']}"
            errors.print(titled(summary.task, text), style="yellow", markup=False, soft_wrap=True)


def _show_task(summaries: "list[RunSummary]", console: "Console", errors: "Console") -> None:
    """Print the tables of a task, what they say in words, and what must not be."""
    from specdec_core.study.table import departures, quality_table, results_table, verdicts

    quality = quality_table(summaries)
    console.print(results_table(summaries))
    if quality is not None:
        console.print(quality)
    for line in ("", *verdicts(summaries)):
        console.print(line, markup=False, soft_wrap=True)
    for line in departures(summaries):
        errors.print(titled(summaries[0].task, line), style="red", markup=False, soft_wrap=True)


def _run(study: Study, output: Path | None, fresh: bool, quiet: bool) -> "StudyResult":
    if output is not None:
        from specdec_core.study.journal import make_folder

        make_folder(output)  # a folder that cannot be written should not cost the time of loading a model
    with StudyProgress(error_console(), quiet=quiet) as progress:
        try:
            progress.loading("torch and transformers")
            from specdec_core.study.runner import run_study

            quieten_libraries()
            return run_study(study, progress, output=output, fresh=fresh)
        except KeyboardInterrupt:
            kept = _kept(progress, output)
    error_console().print(kept, markup=False, soft_wrap=True)
    raise typer.Exit(INTERRUPTED)


def _kept(progress: StudyProgress, output: Path | None) -> str:
    if output is None:
        return "stopped; nothing was kept. With --output DIR, a stopped study goes on where it was."
    return (
        f"stopped; {progress.finished} of {progress.repeats} repeats are kept in {output}. "
        "Give the same command again to go on from there."
    )
