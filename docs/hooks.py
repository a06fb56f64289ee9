"""What mkdocs draws while it builds the site: figures and a table of the paper, and traces in colour.

mkdocs.yml names this file under `hooks`. Nothing of what is drawn here is kept in the repository: the site shows
what the formulas and the recorded runs give when it is built. Pages are plain Markdown without it:

    ![...](assets/figures/figure-2.svg)   a file that is drawn
    <!-- table: 1 -->                      a table of the paper beside what the formulas give
    <!-- output: specdec generate ... --trace -->   its output is coloured as in Figure 1
"""

from __future__ import annotations

import html
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_core.theory.figures import FIGURES, draw_figure
from specdec_core.theory.tables import TABLES, Cell

sys.path.insert(0, str(Path(__file__).parent))
import timeline

sys.path.pop(0)

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FOLDER = "assets/figures"
"""Where the drawings are on the site."""

_TABLE = re.compile(r"<!-- table: (?P<number>\d+) -->")
_LETTERS = {"alpha": r"$\alpha$", "gamma": r"$\gamma$"}
_FATES = {"+": "accepted", "-": "rejected", "!": "recovered", "*": "bonus"}
# A token may hold brackets itself; what follows one is another token, or the end of the line.
_TOKEN = re.compile(r"\[([-+!*])((?:(?!\[[-+!*]).)*?)\](?=\[[-+!*]| drafted| drawn|$)", re.MULTILINE)
_TRACE = re.compile(r"(?<=<code>)(?=[^<]*\[(?:[-+!*])[^<]*\[\*bonus\] drawn)([^<]*)(?=</code>)")


def drawings() -> Mapping[str, Callable[[Path], None]]:
    """Return what draws each file, by its name."""
    figures = {f"figure-{number}.svg": partial(draw_figure, number) for number in FIGURES}
    return {**figures, "figure-5.svg": lambda path: timeline.draw(timeline.read(), path)}


def table(number: int) -> str:
    """Return a table of the paper as Markdown, with its notes below."""
    shown = TABLES[number]()
    lines = [f"| {' | '.join(_LETTERS.get(name, name) for name in shown.columns)} |"]
    lines.append("|" + "--:|" * len(shown.columns))
    for row in shown.rows:
        cells = [_cell(cell, spec) for cell, spec in zip(row, shown.columns.values(), strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"*{shown.title}. {' '.join(shown.notes)}*"])


def coloured(page: str) -> str:
    """Return the HTML of a page with its traces in colour: a token's span says what became of it."""
    return _TRACE.sub(lambda found: _TOKEN.sub(_span, found[1]), page)


def _span(found: re.Match[str]) -> str:
    return f'<span class="trace-{_FATES[found[1]]}">{found[2]}</span>'


def _cell(cell: Cell, spec: str) -> str:
    return "–" if cell is None else html.escape(format(cell, spec))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the drawings to what the site is made of."""
    from mkdocs.structure.files import File

    with tempfile.TemporaryDirectory() as folder:
        for name, draw in drawings().items():
            draw(Path(folder) / name)
            content = (Path(folder) / name).read_text(encoding="utf-8")
            files.append(File.generated(config, f"{FOLDER}/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Write the tables of the paper where a page wants them."""
    return _TABLE.sub(lambda found: table(int(found["number"])), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Colour the traces of a page."""
    return coloured(html)
