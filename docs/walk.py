"""The tutorial as a reader follows it: its commands in their order, in a folder of their own.

The page shows the drafter that `specdec new` writes, and then a better one. So its outputs depend on those before
them, and on a package that is installed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
PACKAGE = "specdec-last-word"
INSTALLED = "installed"
"""Folder inside the package; with both on Python's path, the package is found as pip would install it."""
PRINTED = r"<!-- output(?:: (?P<command>[^\n]+?))? -->\n```text\n(?P<text>.*?)^```$"
"""The pattern of an output with its command, if that is not the block above."""
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PART = re.compile(
    rf"<!-- include: docs/examples/{PACKAGE}/(?P<file>[^:\s]+)\S* -->|{PRINTED}", re.DOTALL | re.MULTILINE
)


def command_of(found: re.Match[str]) -> str:
    """Return the command, in one line, of an output that `PRINTED` found in a page."""
    above = found["command"] or _SHELL.findall(found.string[: found.start()])[-1]
    return " ".join(above.replace("\\\n", " ").split())


def walk(folder: Path, run: Callable[[str, Path], str]) -> Iterator[tuple[str, str, str]]:
    """Follow the page.

    Args:
        folder: An empty folder.
        run: Runs a command in a folder and returns what it prints.

    Yields:
        Each command whose output the page shows, that output, and what the command prints.
    """
    package = folder / PACKAGE
    for part in _PART.finditer(PAGE.read_text(encoding="utf-8")):
        if part["file"]:
            shutil.copy(ROOT / "docs" / "examples" / PACKAGE / part["file"], package / part["file"])
            continue
        command = command_of(part)
        yield command, part["text"], run(command, package if package.is_dir() else folder)
        if not (package / INSTALLED).is_dir():
            _install(package)


def _install(package: Path) -> None:
    """Write what pip writes so that the package is found, into its folder `installed`."""
    info = package / INSTALLED / "specdec_last_word-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: specdec-last-word\nVersion: 0.1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text("[specdec]\nlast-word = specdec_last_word\n", encoding="utf-8")
