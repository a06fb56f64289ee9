"""A study from Python: running it, and its findings. Importing this imports no torch."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_core.cluster import Pool, pooled
from specdec_core.interface.errors import ArgumentError, SpecdecError
from specdec_core.study.config.loader import MAX_RUNS, load_study
from specdec_core.study.config.study import Study, with_task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specdec_core.interface import Progress
    from specdec_core.study.report.summary import RunSummary
    from specdec_core.study.report.verdict import Verdict
    from specdec_core.study.run.study_session import StudyResult

StudyLike: TypeAlias = Study | Path | str | Mapping[str, Any]
"""A study, the path of its YAML file, or a mapping of what the file would hold."""

_WIDTH = 200
"""Width of the printed tables."""


@dataclass(frozen=True)
class Comparison:
    """The result of a study: printed it is a table, and in a notebook a table with charts.

    Attributes:
        study: The study that was run.
        rows: The summary of each run, grouped by task, the baseline first in each.
        files: The files that were written to the output folder, if there is one.
        unwritten: A line for each file that could not be written, with the reason.
    """

    study: Study
    rows: tuple[RunSummary, ...]
    files: tuple[Path, ...] = ()
    unwritten: tuple[str, ...] = ()

    @property
    def report(self) -> Path | None:
        """Path of the HTML report; None without an output folder."""
        return next((path for path in self.files if path.suffix == ".html"), None)

    @property
    def errors(self) -> tuple[str, ...]:
        """A line for each run that was abandoned and each file that could not be written, with the reason."""
        abandoned = (with_task(runs[0].task, line) for runs, found in self._verdicts() for line in found.errors)
        return (*abandoned, *self.unwritten)

    @property
    def failures(self) -> tuple[str, ...]:
        """The same, and a line for each run in which a plugin failed, or that departs from the baseline."""
        lines = ((runs[0].task, (*found.failures, *found.departures)) for runs, found in self._verdicts())
        return (*self.errors, *(with_task(task, line) for task, found in lines for line in found))

    @property
    def exit_code(self) -> int:
        """The exit code of `specdec compare`: 0 unless a run failed or departs, or a file was not written."""
        from specdec_core.study.report.verdict import exit_code

        return SpecdecError.exit_code if self.unwritten else exit_code(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a mapping for each run: the lines of `results.jsonl`."""
        return [row.flat() for row in self.rows]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with the rows and columns of `summary.csv`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas. to_dicts() needs nothing.") from error
        from specdec_core.study.report.result_files import table_rows

        return pd.DataFrame([row for line in self.to_dicts() for row in table_rows(line)])

    def __repr__(self) -> str:
        tasks = len(self.study.tasks)
        return f"<Comparison of {self.study.path.name}: {len(self.rows)} rows in {tasks} task{'s' * (tasks != 1)}>"

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        for part in self.printed():
            console.print(part)
        for line in self.errors:
            console.print(line, markup=False, soft_wrap=True)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def printed(self, *, wide: bool = False) -> Iterator[RenderableType]:
        """Yield what `specdec compare` prints: for each task the verdict, its tables and the diagnoses.

        Args:
            wide: Whether tables have all columns, and groups of few prompts.
        """
        from specdec_core.study.report.diagnosis import diagnosis_table
        from specdec_core.study.report.groups import group_tables, large_groups
        from specdec_core.study.report.layout import Prose
        from specdec_core.study.report.paired import MIN_PROMPTS
        from specdec_core.study.report.served import served_table
        from specdec_core.study.report.tables import quality_table, results_table

        yield from (Prose(f"Left out: {line}", "yellow") for line in self.study.left_out)
        for number, (task, found) in enumerate(self._verdicts()):
            if number:
                yield Prose("")
            results = results_table(task, wide=wide)
            if results.title is not None:
                yield Prose(results.title, "bold")
            yield Prose(f"Verdict: {found.answer}", "bold")
            yield from (Prose(line, "red") for line in (*found.failures, *found.departures))
            yield from (Prose(f"Warning: {line}", "yellow") for line in found.warnings)
            groups = group_tables(task if wide else large_groups(task))
            own = [replace(results, title=None), quality_table(task), diagnosis_table(task), served_table(task)]
            tables = [*own, *groups]
            for index, table in enumerate(filter(None, tables)):
                if index:
                    yield Prose("")
                yield table
            if not wide and any(group.prompts < MIN_PROMPTS for one in task for group in one.groups):
                yield Prose(f"`--wide` also shows groups of fewer than {MIN_PROMPTS} prompts.", "dim italic")

    def _repr_html_(self) -> str:
        from specdec_core.study.report.html_report import report_page

        # A frame of its own, so that styles of the notebook and of the report do not meet.
        page = html.escape(report_page(self.study.path.name, self.rows, {}, {}))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 48rem; border: 0"></iframe>'

    def _verdicts(self) -> list[tuple[list[RunSummary], Verdict]]:
        """Return the summaries and the verdict of each task."""
        from specdec_core.study.report.tables import by_task
        from specdec_core.study.report.verdict import verdict

        return [(task, verdict(task)) for task in by_task(self.rows)]


def compare(
    study: StudyLike,
    output: Path | str | None = None,
    *,
    fresh: bool = False,
    max_runs: int = MAX_RUNS,
    ray: str | Pool | None = None,
    forecast: Path | str | None = None,
    progress: bool | Progress = True,
) -> Comparison:
    """Run a study: compare its drafters with the autoregressive baseline. `specdec compare` does the same.

    Args:
        study: The path of a YAML file, a mapping of what it would hold, or a study that was read.
        output: Folder that receives the results and the report, and from which a stopped study resumes.
        fresh: Discard what an earlier study left in the folder.
        max_runs: The most runs that the study may have, with grids expanded, over all tasks.
        ray: Address of a Ray cluster whose workers load the models and decode: `auto`, `local`, `HOST:PORT` or
            `ray://HOST:PORT`; or a pool that is open. None for this process. Runs are timed one at a time, on a
            separate device; those of a study with `timing: false` decode side by side.
        forecast: Results of a replay, a folder, which say what to expect of the runs of engines.
        progress: Whether to show the progress, in a notebook or on standard error; or where to report it.

    Raises:
        ArgumentError: The study is none of these.
        SpecdecError: It is invalid, its target cannot be loaded, or the folder cannot be used. A run that fails is
            in the result, and the others continue.
    """
    if isinstance(study, str | Path | Mapping):
        study = load_study(study if isinstance(study, Mapping) else Path(study), max_runs=max_runs)
    elif not isinstance(study, Study):
        raise ArgumentError(
            f"study: an object of type {type(study).__name__} was given; pass the path of a YAML file, or a "
            "mapping of what it would hold."
        )
    if forecast is not None:
        from specdec_core.study.report.forecast import read_results

        read_results(Path(forecast))  # before anything is decoded

    def run(progress: Progress, folder: Path | None) -> StudyResult:
        from specdec_core.study.run.runner import run_study

        with pooled(ray, progress) as pool:
            return run_study(study, progress, output=folder, fresh=fresh, pool=pool)

    return hold(run, output, progress, None if forecast is None else Path(forecast))


def hold(
    run: Callable[[Progress, Path | None], StudyResult],
    output: Path | str | None,
    progress: bool | Progress,
    forecast: Path | None = None,
) -> Comparison:
    """Run or replay a study, and hold what it found.

    Args:
        run: Runs the study, given who receives the progress and the folder.
        output: The folder, which is made if it is not there, and which no other study uses until its results are
            written; None for none.
        progress: As for `compare`.
        forecast: Results of a replay.

    Raises:
        SpecdecError: The folder cannot be used, or the study cannot be run.
    """
    folder = None if output is None else Path(output).absolute()  # wherever a plugin changes to
    with ExitStack() as entered:
        if folder is not None:
            from specdec_core.study.run.folder import exclusive_lock

            entered.enter_context(exclusive_lock(folder))  # until the results are written, too
        if isinstance(progress, bool):
            progress = entered.enter_context(_display(quiet=not progress))
        if "torch" not in sys.modules:
            progress.stage("loading torch and transformers")
        from specdec_core.study.progress import quiet_libraries
        from specdec_core.study.report.result_files import first_outputs, first_traces, write_results
        from specdec_core.study.report.summary import summarize

        with quiet_libraries():
            result = run(progress, folder)
        rows = tuple(summarize(result, forecast))
        if folder is None:
            return Comparison(result.study, rows)
        files, problems = write_results(folder, result.study, rows, first_outputs(result), first_traces(result))
        return Comparison(result.study, rows, tuple(files), tuple(problems))


def _display(*, quiet: bool) -> AbstractContextManager[Progress]:
    """Return the display of progress where Python runs."""
    from rich.console import Console

    from specdec_core.study.progress import NotebookProgress, TerminalProgress

    if Console().is_jupyter and not quiet:
        return NotebookProgress()
    return TerminalProgress(Console(stderr=True, highlight=False), quiet=quiet)
