"""The table of docs/replay.md, from docs/data/replay.json, the output of `python benchmarks/replay.py`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "replay.json"


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def against_live() -> str:
    """Return seconds and intervals of replays beside those of live comparison."""
    head = ("drafter", "replay takes", "live, extrapolated", "efficiency, live", "replayed")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in _data()["rows"]:
        seconds = [f"{row['replay_seconds']:.1f} s", _duration(row["live_seconds"])]
        cells = [_interval(row[name]) for name in ("live", "record")]
        lines.append(f"| {' | '.join([row['drafter'], *seconds, *cells])} |")
    whole = [f"{_data()['replay_seconds']:.0f} s", _duration(_data()["live_seconds"])]
    lines.append(f"| **all** | {' | '.join([*whole, '', ''])} |")
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _interval(found: dict[str, float]) -> str:
    return f"{found['block_efficiency']:.2f} ±{found['same_prompts']:.3f}"


TABLES = {"against-live": against_live}
