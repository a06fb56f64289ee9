"""Results on disk: JSON lines for programs, CSV for a spreadsheet, the texts, and a page to read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.study.journal import write_atomically
from specdec_core.study.page import report_page

if TYPE_CHECKING:
    from specdec_core.study.study import Study
    from specdec_core.study.summary import RunSummary

RESULTS = "results.jsonl"
"""The file with one object a run."""
OUTPUTS = "outputs.jsonl"
"""The file with the texts."""
SUMMARY = "summary.csv"
"""The file with a row a run."""
PAGE = "report.html"
"""The file to read."""

_IN_COLUMNS = {"time_shares": "time", "quality": "quality"}
"""Mappings of numbers that get a column each, and what their names begin with."""


def write_results(
    folder: Path, study: Study, summaries: Sequence[RunSummary], outputs: Iterable[Mapping[str, Any]]
) -> list[Path]:
    """Write `results.jsonl`, `summary.csv`, `outputs.jsonl` and `report.html`; return their paths.

    Each is written as a whole or not at all.

    Args:
        folder: Where to; it exists.
        study: What was run.
        summaries: What was found out about each run.
        outputs: What each run wrote after each prompt, as plain data.

    Raises:
        StorageError: When the folder cannot be written.
    """
    plain = [asdict(summary) for summary in summaries]
    texts = list(outputs)
    write_atomically(folder / RESULTS, _lines(plain))
    write_atomically(folder / OUTPUTS, _lines(texts))
    flat = [_flat(summary) for summary in plain]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_atomically(folder / SUMMARY, table.getvalue())
    prompts = {task.name: task.prompts for task in study.tasks}
    write_atomically(folder / PAGE, report_page(study.path.name, summaries, texts, prompts))
    return [folder / name for name in (RESULTS, SUMMARY, OUTPUTS, PAGE)]


def _lines(entries: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what fits into the cells of a row: numbers and texts."""
    row: dict[str, Any] = {}
    for name, value in summary.items():
        if name in _IN_COLUMNS:
            row |= {f"{_IN_COLUMNS[name]}_{part}": one for part, one in (value or {}).items() if _is_cell(one)}
        elif _is_cell(value):
            row[name] = value
    return row


def _is_cell(value: Any) -> bool:
    return not isinstance(value, (Mapping, tuple, list))
