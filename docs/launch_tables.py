"""The table of docs/how-a-step-works.md, from docs/data/launches.json, the output of `benchmarks/launches.py`."""

from __future__ import annotations

import json
from pathlib import Path

from markdown_table import table

DATA = Path(__file__).parent / "data" / "launches.json"
COLUMNS = ("fetches", "pinned", "launches", "allocations")


def per_step() -> str:
    """Return what a step costs the host, for each drafter, greedy and sampled."""
    settings = json.loads(DATA.read_text(encoding="utf-8"))
    names = list(dict.fromkeys(name for cases in settings.values() for name in cases))
    rows = []
    for name in names:
        costs = [cases.get(name) for cases in settings.values()]
        cells = ["/".join(str(cost[column]) for column in COLUMNS) if cost else "" for cost in costs]
        rows.append((name, *cells))
    return table(("", *settings), rows)


TABLES = {"per-step": per_step}
