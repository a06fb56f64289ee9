"""Tables that the generated parts of the pages share, and those of three pages from the files in docs/data.

beams.json is the output of `python benchmarks/beams.py --part counts`, what no machine changes; generation.json
that of `python -m tests.generation`; hybrids.json that of `python -m tests.models.family_table --write`; and
replay.json that of `python benchmarks/replay.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specdec_core.study.report.verdict import MAX_EXCESS

DATA = Path(__file__).parent / "data"


@cache
def data(name: str) -> dict[str, Any]:
    """Return the content of a file of docs/data, by its name without .json."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def cores(machine: str) -> str:
    """Return a machine in few words; docs/limitations.md describes the one that most tables come from."""
    return re.sub(r"two cores of an? (shared )?x86-64 server( \(.*\))?", "two x86-64 cores", machine)


def speedup(speed: float, plain: float, bound: float, what: str) -> float:
    """Return the speed-up over plain decoding.

    Args:
        speed: Tokens per second.
        plain: Those of plain decoding.
        bound: Tokens per pass of the target, which no speed-up exceeds, as passes over more tokens are not faster.
        what: What was measured, for the error.

    Raises:
        ValueError: The speed-up exceeds the bound by more than noise.
    """
    if speed / plain > MAX_EXCESS * bound:
        raise ValueError(
            f"{what}: {speed:g} tokens/s are {speed / plain:.2f} times plain decoding, but {bound:.2f} tokens per "
            "target pass allow no more than that. Measure both again on a quiet machine."
        )
    return speed / plain


def quality() -> str:
    """Return BLEU by the number of beams, and how many texts are those of transformers, drafted or not."""
    beams_data = data("beams")
    bleu = {row["w"]: f"{row['bleu']:.1f}" for row in beams_data["rows"] if "bleu" in row}
    greedy = bleu.pop(1)
    *others, last = bleu.values()
    *beams, most = map(str, bleu)
    shares = ("same_as_transformers", "same_as_without")
    same = min(row[share] for row in beams_data["rows"] for share in shares if share in row)
    return (
        f"BLEU of the built-in T5 on {beams_data['prompts']} prompts is {greedy} in greedy decoding, and "
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
        for row in data("beams")["rows"]
        if "u" in row
    ]
    return table(head, rows)


def families() -> str:
    """Return what became of the tests of all families together."""
    found = data("generation")
    lines = [
        f"| with transformers {found['transformers']} | equal | not supported, or listed above | not in plain "
        "`generate` | failed |",
        "|---|--:|--:|--:|--:|",
    ]
    names = ", ".join(f"`{row['family']}`" for row in found["rows"])
    sums = [sum(row[one] for row in found["rows"]) for one in ("passed", "expected", "skipped", "failed")]
    lines.append(f"| {names} | {' | '.join(map(str, sums))} |")
    return "\n".join(lines) + "\n"


def hybrids() -> str:
    """Return what works with each family, those alike in one line."""
    found = data("hybrids")
    cells = [name for name in found["rows"][0] if name not in ("family", "models")]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in found["rows"]:
        name = f"{row['models']} (`{row['family']}`)" if row["models"] else f"`{row['family']}`"
        alike.setdefault(tuple(row[cell] for cell in cells), []).append(name)
    lines = []
    for results, names in alike.items():
        if "works" not in results:  # Models lists what is refused
            continue
        answers: dict[str, list[str]] = {}
        for cell, result in zip(cells, results, strict=True):
            answers.setdefault(result, []).append(cell)
        lines.append(f"- {'; '.join(names)}\n")
        lines += [f"    - **{', '.join(of)}**: {result}\n" for result, of in answers.items()]
    return f"\nWith transformers {found['transformers']}:\n\n{''.join(lines)}\n"


def against_live() -> str:
    """Return the intervals of replays beside those of live comparison, and the seconds of all together."""
    rows = ([row["drafter"], _interval(row["live"]), _interval(row["record"])] for row in data("replay")["rows"])
    replay, live = data("replay")["replay_seconds"], data("replay")["live_seconds"] / 3600
    return (
        table(("drafter", "live", "replayed"), rows)
        + f"\nAll replays took {replay:.0f} s; decoding as much live would take {live:.1f} h.\n"
    )


def _interval(found: dict[str, float]) -> str:
    return f"{found['block_efficiency']:.2f} ±{found['same_prompts']:.3f}"
