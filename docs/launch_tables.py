"""The table of docs/how-a-step-works.md, counted by `benchmarks/launches.py`."""

from __future__ import annotations

from markdown_table import table

from specdec_core.costs.gpu.device import host_costs

COLUMNS = ("fetches", "pinned", "launches", "allocations")


def per_step() -> str:
    """Return what a step costs the host, for each drafter, greedy and sampled."""
    settings = host_costs()
    names = list(dict.fromkeys(name for cases in settings.values() for name in cases))
    rows = []
    for name in names:
        costs = [cases.get(name) for cases in settings.values()]
        cells = ["/".join(str(cost[column]) for column in COLUMNS) if cost else "" for cost in costs]
        rows.append((name, *cells))
    return table(("", *settings), rows)


TABLES = {"per-step": per_step}
