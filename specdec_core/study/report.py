"""Results on disk: JSON lines for programs, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.study.journal import write_atomically

if TYPE_CHECKING:
    from specdec_core.study.summary import RunSummary

RESULTS = "results.jsonl"
SUMMARY = "summary.csv"

_IN_COLUMNS = {"time_shares": "time"}
"""Mappings of numbers that get a column each, and what their names begin with."""


def write_results(folder: Path, summaries: Sequence[RunSummary]) -> list[Path]:
    """Write `results.jsonl` and `summary.csv`, each as a whole or not at all; return their paths.

    Raises:
        StorageError: When the folder cannot be written.
    """
    plain = [asdict(summary) for summary in summaries]
    lines = "".join(json.dumps(summary, ensure_ascii=False) + "\n" for summary in plain)
    write_atomically(folder / RESULTS, lines)
    flat = [_flat(summary) for summary in plain]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_atomically(folder / SUMMARY, table.getvalue())
    return [folder / RESULTS, folder / SUMMARY]


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what fits into the cells of a row: numbers and texts."""
    row: dict[str, Any] = {}
    for name, value in summary.items():
        if name in _IN_COLUMNS:
            row |= {f"{_IN_COLUMNS[name]}_{part}": share for part, share in (value or {}).items()}
        elif not isinstance(value, (Mapping, tuple, list)) and name != "quality":
            row[name] = value
    return row
