"""The tables of checks on the page of the conformance kit, from the checks themselves.

A table stands between `<!-- checks: KIND -->` and `<!-- end of checks -->`. `python docs/renew.py` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

from specdec_core.testing import checks

PAGES = [Path(__file__).parent / "kit.md"]
_PLACE = re.compile(r"(<!-- checks: (?P<kind>\w+) -->\n).*?(<!-- end of checks -->)", re.DOTALL)


def renewed(text: str) -> str:
    """Return the page with its tables as the checks are."""
    return _PLACE.sub(lambda found: f"{found[1]}{table(found['kind'])}{found[3]}", text)


def table(kind: str) -> str:
    """Return the checks of a kind as a Markdown table, in the order in which they run."""
    rows = [f"| `{one.name}`{'' if one.required else ' (optional)'} | {one.summary} |" for one in checks(kind)]
    rows = ["| check | what it proves |", "|---|---|", *rows]
    return "\n".join(rows) + "\n"
