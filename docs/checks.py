"""Write the tables of checks on the page of the conformance kit from the checks themselves.

    python docs/checks.py            renew docs/kit.md
    python docs/checks.py --check    exit with 1 when it is not what the checks say

A table stands between `<!-- checks: KIND -->` and `<!-- end of checks -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from specdec_core.testing import checks

PAGE = Path(__file__).parent / "kit.md"
_PLACE = re.compile(r"(<!-- checks: (?P<kind>\w+) -->\n).*?(<!-- end of checks -->)", re.DOTALL)


def renewed(text: str) -> str:
    """Return the page with its tables as the checks are."""
    return _PLACE.sub(lambda found: f"{found[1]}{table(found['kind'])}{found[3]}", text)


def table(kind: str) -> str:
    """Return the checks of a kind as a Markdown table, in the order in which they run."""
    rows = [f"| `{one.name}`{'' if one.required else ' (optional)'} | {one.summary} |" for one in checks(kind)]
    rows = ["| check | what it proves |", "|---|---|", *rows]
    return "\n".join(rows) + "\n"


def main() -> None:
    """Renew or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    stale = renewed(text) != text
    if stale and not check:
        PAGE.write_text(renewed(text), encoding="utf-8")
    print(f"{'stale' if check else 'renewed'}: {PAGE.name if stale else 'nothing'}")
    sys.exit(stale and check)


if __name__ == "__main__":
    main()
