"""Results on disk: JSON lines for programs, CSV for a spreadsheet, and the texts that were written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.study.journal import write_atomically

if TYPE_CHECKING:
    from specdec_core.study.summary import RunSummary

RESULTS = "results.jsonl"
OUTPUTS = "outputs.jsonl"
SUMMARY = "summary.csv"

_IN_COLUMNS = {"time_shares": "time", "quality": "quality"}
"""Mappings of numbers that get a column each, and what their names begin with."""


def write_results(
    folder: Path, summaries: Sequence[RunSummary], outputs: Iterable[Mapping[str, Any]]
) -> list[Path]:
    """Write `results.jsonl`, `summary.csv` and `outputs.jsonl`, each as a whole or not at all; return their paths.

    Args:
        folder: Where to; it exists.
        summaries: What was found out about each run.
        outputs: What each run wrote after each prompt, as plain data.

    Raises:
        StorageError: When the folder cannot be written.
    """
    plain = [asdict(summary) for summary in summaries]
    write_atomically(folder / RESULTS, _lines(plain))
    write_atomically(folder / OUTPUTS, _lines(outputs))
    flat = [_flat(summary) for summary in plain]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_atomically(folder / SUMMARY, table.getvalue())
    return [folder / name for name in (RESULTS, SUMMARY, OUTPUTS)]


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
