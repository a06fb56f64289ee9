"""Run the commands whose output the pages show, and put what they print in its place.

    python docs/outputs.py                      every output in README.md and docs/
    python docs/outputs.py README.md            those of some files
    python docs/outputs.py --like compare       those whose command holds a word

An output is a block ```text under a line `<!-- output: COMMAND -->`. Commands run in the repository's root, with
the programs of the Python that runs this script first in the path; their standard output is what counts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SHOWN = re.compile(
    r"(<!-- output: (?P<command>[^\n]+?) -->\n```text\n)(?P<text>.*?)^(```)$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Output:
    """A command and what a page says it prints."""

    page: Path
    command: str
    text: str


def pages() -> list[Path]:
    """Return the pages that readers see."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page: Path) -> Iterator[Output]:
    """Yield the outputs on a page."""
    for found in _SHOWN.finditer(page.read_text(encoding="utf-8")):
        yield Output(page, found["command"], found["text"].rstrip("\n"))


def run(command: str) -> str:
    """Return what a command prints on standard output, without blanks at the ends of lines.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return tidy(done.stdout)


def tidy(printed: str) -> str:
    """Return what was printed as a page shows it: without blanks at the ends of lines, nor empty lines around."""
    return "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")


def refresh(page: Path, like: str = "") -> None:
    """Run the commands of a page and rewrite it."""

    def renewed(found: re.Match[str]) -> str:
        if like not in found["command"]:
            return found[0]
        print(f"{page.relative_to(ROOT)}: {found['command']}", flush=True)
        return f"{found[1]}{run(found['command'])}\n{found[4]}"

    page.write_text(_SHOWN.sub(renewed, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Refresh the pages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files; all when left out")
    parser.add_argument("--like", default="", help="only commands that hold this text")
    options = parser.parse_args()
    for page in [path.resolve() for path in options.pages] or pages():
        refresh(page, options.like)


if __name__ == "__main__":
    main()
