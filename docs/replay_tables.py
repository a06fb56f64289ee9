"""The table of docs/replay.md, from docs/data/replay.json, the output of `python benchmarks/replay.py`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import markdown_table

DATA = Path(__file__).parent / "data" / "replay.json"


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def against_live() -> str:
    """Return the intervals of replays beside those of live comparison, and the seconds of all together."""
    rows = ([row["drafter"], _interval(row["live"]), _interval(row["record"])] for row in _data()["rows"])
    replay, live = _data()["replay_seconds"], _data()["live_seconds"] / 3600
    return (
        markdown_table.table(("drafter", "live", "replayed"), rows)
        + f"\nAll replays took {replay:.0f} s; decoding as much live would take {live:.1f} h.\n"
    )


def _interval(found: dict[str, float]) -> str:
    return f"{found['block_efficiency']:.2f} ±{found['same_prompts']:.3f}"


TABLES = {"against-live": against_live}
