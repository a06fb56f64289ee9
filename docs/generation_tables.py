"""The table of docs/transformers.md, from docs/data/generation.json, written by `python -m tests.generation`."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent / "data" / "generation.json"


def families() -> str:
    """Return what became of each family, those with the same figures in one row."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    groups: dict[tuple[int, ...], list[str]] = {}
    for row in data["rows"]:
        figures = tuple(row[one] for one in ("passed", "expected", "skipped", "failed"))
        groups.setdefault(figures, []).append(f"`{row['family']}`")
    lines = [
        f"| with transformers {data['transformers']} | equal | not supported, or listed above | not in plain "
        "`generate` | failed |",
        "|---|--:|--:|--:|--:|",
    ]
    for figures, names in sorted(groups.items(), key=lambda one: -len(one[1])):
        lines.append(f"| {', '.join(names)} | {' | '.join(map(str, figures))} |")
    sums = [sum(figures[n] * len(names) for figures, names in groups.items()) for n in range(4)]
    lines.append(f"| **{len(data['rows'])} families** | {' | '.join(f'**{one}**' for one in sums)} |")
    return "\n".join(lines) + "\n"


TABLES = {"families": families}
