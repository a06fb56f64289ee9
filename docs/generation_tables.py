"""The table of docs/transformers.md, from docs/data/generation.json, written by `python -m tests.generation`."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent / "data" / "generation.json"


def families() -> str:
    """Return what became of the tests: of the families that pass some, together, and of those that pass none."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    lines = [
        f"| with transformers {data['transformers']} | equal | not supported, or listed above | not in plain "
        "`generate` | failed |",
        "|---|--:|--:|--:|--:|",
    ]
    for passing in (True, False):
        rows = [row for row in data["rows"] if (row["passed"] > 0) == passing]
        names = ", ".join(f"`{row['family']}`" for row in rows)
        sums = [sum(row[one] for row in rows) for one in ("passed", "expected", "skipped", "failed")]
        lines.append(f"| {names} | {' | '.join(map(str, sums))} |")
    return "\n".join(lines) + "\n"


TABLES = {"families": families}
