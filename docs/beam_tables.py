"""The tables of docs/beams.md, from docs/data/beams.json.

The data is the output of `python benchmarks/beams.py --part counts`: what no machine changes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from markdown_table import table

DATA = Path(__file__).parent / "data" / "beams.json"


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def quality() -> str:
    """Return BLEU by the number of beams, and how many texts are those of transformers, drafted or not."""
    data = _data()
    bleu = {row["w"]: f"{row['bleu']:.1f}" for row in data["rows"] if "bleu" in row}
    greedy = bleu.pop(1)
    *others, last = bleu.values()
    *beams, most = map(str, bleu)
    shares = ("same_as_transformers", "same_as_without")
    same = min(row[share] for row in data["rows"] for share in shares if share in row)
    return (
        f"BLEU of the built-in T5 on {data['prompts']} prompts is {greedy} in greedy decoding, and "
        f"{', '.join(others)} and {last} with {', '.join(beams)} and {most} beams. "
        f"{same:.0%} of the texts are those of `generate(num_beams=w)`, with a drafter or without.\n"
    )


def passes() -> str:
    """Return the passes that drafts save, by w and u."""
    head = ("w", "u", "levels accepted", "steps per pass", "passes saved", "tokens read per pass")
    rows = [
        (
            str(row["w"]),
            str(row["u"]),
            f"{row['alpha']:.2f}",
            f"{row['steps_per_pass']:.2f}",
            f"{row['saved']:.0%}",
            f"{row['tokens_per_pass']:.1f}",
        )
        for row in _data()["rows"]
        if "u" in row
    ]
    return table(head, rows)


TABLES = {"quality": quality, "passes": passes}
