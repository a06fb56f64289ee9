"""The tables of docs/beams.md, from docs/data/beams.json.

The data is the output of `python benchmarks/beams.py --part counts`: what no machine changes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "beams.json"


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def quality() -> str:
    """Return BLEU by the number of beams, and how often sequences are those of transformers."""
    lines = [f"| beams | BLEU, {_data()['prompts']} prompts | same as `generate(num_beams=w)` |", "|---|---|---|"]
    for row in _data()["rows"]:
        if "bleu" in row:
            same = f"{row['same_as_transformers']:.0%}" if "same_as_transformers" in row else ""
            lines.append(f"| {row['w'] if row['w'] > 1 else 'greedy'} | {row['bleu']:.1f} | {same} |")
    return "\n".join(lines) + "\n"


def passes() -> str:
    """Return the passes that drafts save, by w and u."""
    head = ("w", "u", "same as without a drafter", "levels accepted", "steps per pass", "passes saved")
    lines = [f"| {' | '.join((*head, 'tokens read per pass'))} |", f"|{'---|' * 7}"]
    for row in _data()["rows"]:
        if "passes" not in row:
            continue
        cells = [str(row["w"]), "–", "", "", f"{row['steps_per_pass']:.2f}", ""]
        if "u" in row:
            shares = f"{row['same_as_without']:.0%}", f"{row['alpha']:.2f}"
            cells = [str(row["w"]), str(row["u"]), *shares, cells[4], f"{row['saved']:.0%}"]
        lines.append(f"| {' | '.join((*cells, format(row['tokens_per_pass'], '.1f')))} |")
    return "\n".join(lines) + "\n"


TABLES = {"quality": quality, "passes": passes}
