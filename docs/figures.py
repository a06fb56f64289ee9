"""Draw the figures that the page on theory shows.

    python docs/figures.py            draw all of them anew
    python docs/figures.py --check    exit with 1 when one is not what the formulas give

Each is what `specdec theory figure N --output docs/assets/theory/figure-N.svg` writes. Another version of
matplotlib may set it differently; the check is meant for the one in constraints.txt.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from pathlib import Path

from specdec_core.theory.figures import FIGURES, draw_figure

FOLDER = Path(__file__).parent / "assets" / "theory"
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
# Names inside a file are hashes of what they name, and change with its last digit.
_NAME = re.compile(r"\b[mp][0-9a-f]{10}\b")


def place(number: int) -> Path:
    """Return where a figure is."""
    return FOLDER / f"figure-{number}.svg"


def stale(number: int) -> bool:
    """Whether a figure is missing, or differs from a new drawing by more than the last digits of its numbers."""
    if not place(number).is_file():
        return True
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "figure.svg"
        draw_figure(number, new)
        return not alike(place(number).read_text(encoding="utf-8"), new.read_text(encoding="utf-8"))


def alike(one: str, other: str) -> bool:
    """Whether two drawings are the same to a hundredth of a point: another machine may round otherwise."""
    one, other = _NAME.sub("name", one), _NAME.sub("name", other)
    if _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), abs_tol=0.01) for a, b in pairs)


def main() -> None:
    """Draw or check the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    old = [number for number in FIGURES if stale(number)]
    for number in old if not check else ():
        FOLDER.mkdir(parents=True, exist_ok=True)
        draw_figure(number, place(number))
    names = ", ".join(place(number).name for number in old)
    print(f"{'stale' if check else 'drawn'}: {names or 'nothing'}")
    sys.exit(bool(old) and check)


if __name__ == "__main__":
    main()
