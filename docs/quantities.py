"""Quantities that sentences on several pages state, with their values from the files that have them.

A page states them as it likes; a test finds the statements by their patterns and compares them with the values, so
that no two pages differ. A quantity that is measured again changes in one file, and the test names the sentences.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "data"
_TARGET = r"(?:[Tt]he )?(?:built-in target|`builtin:target`)"
_DRAFTER = r"(?:[Tt]he )?(?:built-in draft(?:er| model)|`builtin:drafter`)"
_HAS = r"(?: as it ships,?)?(?: which|(?: \||:) [^|]{,40})? (?:has|with|of) (\S+ million) parameters"


class Quantity(NamedTuple):
    """A value, and a pattern whose first group is what a sentence states; of one page only, if it is named."""

    value: str
    pattern: str
    page: str | None = None


def quantities() -> Mapping[str, Quantity]:
    """Return the quantities by name."""
    rows = json.loads((DATA / "timeline.json").read_text(encoding="utf-8"))
    seconds = {row["gamma"]: row["seconds"] for row in rows}
    return {
        "parameters of builtin:target": Quantity(_millions("target"), _TARGET + _HAS),
        "parameters of builtin:drafter": Quantity(_millions("drafter"), _DRAFTER + _HAS),
        **{
            f"c of {name}": Quantity(
                value, r"\bc (?:is|was|of|=) (\d\S*?),? with the built-in target", f"{name}.md"
            )
            for name, value in _costs()
        },
        "milliseconds of figure 5": Quantity(
            f"gamma 7 takes {1000 * seconds[7]:.0f} ms and gamma 3 only {1000 * seconds[3]:.0f}",
            r"(gamma 7 takes .*? and gamma 3 only \d+)",
            "how-a-step-works.md",
        ),
    }


def statements(name: str, page: str) -> Iterator[tuple[str, str, str]]:
    """Yield each statement of a page: the quantity, the value that is stated, and the value that it has."""
    text = " ".join(page.split())
    for about, quantity in quantities().items():
        if quantity.page in (None, name):
            for found in re.finditer(quantity.pattern, text):
                yield about, found[1], quantity.value


def _millions(model: str) -> str:
    """Return the number of weights of a built-in model, to two digits at least."""
    with (ROOT / "models/specdec_models" / model / "model.safetensors").open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    count = sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__") / 1e6
    return f"{count:.1f} million" if count > 1 else f"{count:.2f} million"


def _costs() -> Iterator[tuple[str, str]]:
    """Yield drafters with the c that was measured for them next to the built-in target, without its range."""
    rows = json.loads((DATA / "recorded.json").read_text(encoding="utf-8"))["draft-cost"]["rows"]
    for row in rows:
        yield row["drafter"], row["c, built-in target"].partition(" ")[0]
