"""Results on disk: JSON lines, CSV, the outputs, and the HTML report."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import SpecdecError
from specdec_core.interface.files import writing_file
from specdec_core.study.config.grouping import group_label
from specdec_core.study.config.study import BASELINE, Study
from specdec_core.study.report.html_report import Outputs, Traces, report_page
from specdec_core.study.report.summary import RunSummary
from specdec_core.study.run.folder import OUTPUTS, REPORT, RESULTS, SUMMARY
from specdec_core.study.run.study_session import StudyResult

_COLUMN_PREFIXES = {"quality": "quality", "replayed": "replayed", "forecast": "forecast", "time_shares": "time"}
"""Mappings whose entries get a column each in `summary.csv`, and the prefix of the columns."""


def first_outputs(result: StudyResult) -> Outputs:
    """Return the outputs of the first finished repeat of each run; repeats have the same seeds."""
    return {
        (task.name, run.name): repeat.outputs
        for task in result.study.tasks
        for run in task.runs
        for repeat in list(result.of_run(task, run.name).values())[:1]
    }


def first_traces(result: StudyResult) -> Traces:
    """Return the trace of each run that has one."""
    return {key[:2]: repeat.trace for key, repeat in result.repeats.items() if repeat.trace is not None}


def output_lines(study: Study, outputs: Outputs) -> Iterator[dict[str, Any]]:
    """Yield the lines of `outputs.jsonl`: each run's output for each prompt."""
    for task in study.tasks:
        baseline = outputs.get((task.name, BASELINE), ())
        for run in task.runs:
            written = outputs.get((task.name, run.name), ())
            for index, (prompt, output) in enumerate(zip(task.prompts, written, strict=False)):
                metrics = output.metrics
                drafts = metrics is not None and metrics.num_spec_tokens > 0
                figures = metrics.to_plain(detailed=True) if metrics is not None and drafts else None
                yield {
                    "task": task.name,
                    "run": run.name,
                    "prompt": prompt.id,
                    "turn": prompt.turn,
                    "source": prompt.source,
                    **({"group": list(prompt.group)} if prompt.group else {}),
                    "text": output.text,
                    "references": list(prompt.references),
                    "same_as_baseline": index < len(baseline) and output.same_as(baseline[index]),
                    "tokens": list(output.tokens),
                    "finish_reason": output.finish_reason,
                    "metrics": {"speculative_decoding": figures},
                }


def write_results(
    folder: Path, study: Study, summaries: Sequence[RunSummary], outputs: Outputs, traces: Traces | None = None
) -> tuple[list[Path], list[str]]:
    """Write `results.jsonl`, `summary.csv`, `outputs.jsonl` and `report.html`, each whole or not at all.

    What goes wrong with one of them does not keep the others from being written.

    Args:
        folder: The folder of results.
        study: The study that was run.
        summaries: The summary of each run.
        outputs: The outputs of each run, as `first_outputs` returns them.
        traces: The traces, as `first_traces` returns them.

    Returns:
        The paths of the files that were written, and why others were not.
    """
    lines = [summary.flat() for summary in summaries]
    prompts = {task.name: task.prompts for task in study.tasks}
    contents: dict[str, Callable[[], Iterable[str]]] = {
        RESULTS: lambda: _json_lines(lines),
        SUMMARY: lambda: [_csv(lines)],
        OUTPUTS: lambda: _json_lines(output_lines(study, outputs)),
        REPORT: lambda: [report_page(study.path.name, summaries, outputs, prompts, traces)],
    }
    written, problems = [], []
    for name, content in contents.items():
        try:
            # The halves of surrogate pairs become `\\ud800`: in JSON, that is their escape.
            with (
                writing_file(folder / name) as path,
                path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
            ):
                file.writelines(content())
        except SpecdecError as error:
            problems.append(str(error))
        else:
            written.append(folder / name)
    return written, problems


def _json_lines(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = [row for line in lines for row in table_rows(line)]
    table = io.StringIO()
    writer = csv.DictWriter(table, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def table_rows(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what `summary.csv` has of a line of `results.jsonl`: a row for the run, and one for each group."""
    if not line.get("groups"):
        return [_cells(line)]
    own = {name: line[name] for name in ("task", "name", "drafter", "gamma")}
    groups = [{**own, **one, "group": group_label(one["group"])} for one in line["groups"]]
    return [{"group": "", **_cells(line)}, *map(_cells, groups)]


def _cells(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that fit into cells; those of some mappings have a column each."""
    row: dict[str, Any] = {}
    for name, value in line.items():
        if name == "percentiles":
            row |= {f"request_{figure}_{key}": one for figure, each in value.items() for key, one in each.items()}
        elif name in _COLUMN_PREFIXES:
            row |= {f"{_COLUMN_PREFIXES[name]}_{key}": one for key, one in (value or {}).items()}
        else:
            row[name] = value
    return {key: value for key, value in row.items() if not isinstance(value, (Mapping, tuple, list))}
