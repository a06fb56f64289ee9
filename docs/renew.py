"""Write what pages take from the code: keys of studies, commands, checks of the kit, and the paper's tables.

    python docs/renew.py            renew the pages
    python docs/renew.py --check    exit with 1 when a page is not what the code says

Each of the modules named here finds its places on a page, and says what belongs there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import checks
import commands
import keys
import paper_tables

WRITERS = (keys, commands, checks, paper_tables)


def stale() -> Iterator[tuple[Path, str]]:
    """Yield each page on which something is not what the code says, with the text that it should have."""
    for path in sorted({page for writer in WRITERS for page in writer.PAGES}):
        text = renewed = path.read_text(encoding="utf-8")
        for writer in WRITERS:
            if path in writer.PAGES:
                renewed = writer.renewed(renewed)
        if renewed != text:
            yield path, renewed


def main() -> None:
    """Renew or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    found = list(stale())
    for path, text in found:
        print(f"{'stale' if check else 'renewed'}: {path.name}")
        if not check:
            path.write_text(text, encoding="utf-8")
    sys.exit(bool(found) and check)


if __name__ == "__main__":
    main()
