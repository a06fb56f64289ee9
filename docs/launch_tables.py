"""The table of docs/how-a-step-works.md, counted by `benchmarks/launches.py`."""

from __future__ import annotations

from markdown_table import table

from specdec_core.costs.gpu.device import host_costs

SHOWN = (
    *("no drafter", "prompt-copy", "ngram", "transformer", "heads", "eagle3", "dflash", "hierarchical"),
    *("no drafter, captured", "eagle3, captured", "transformer, captured", "transformer, tree"),
    *("T5: transformer", "transformer, 3 beams", "transformer, rule block"),
)
"""A drafter of each kind; specdec_core/costs/gpu/launches.json has the others."""

COLUMNS = ("fetches", "pinned", "launches", "allocations")


def per_step() -> str:
    """Return what a step costs the host, for a drafter of each kind, greedy and sampled."""
    settings = host_costs()
    rows = []
    for name in SHOWN:
        costs = [cases.get(name) for cases in settings.values()]
        cells = ["/".join(str(cost[column]) for column in COLUMNS) if cost else "" for cost in costs]
        rows.append((name, *cells))
    return table(("", *settings), rows)


TABLES = {"per-step": per_step}
