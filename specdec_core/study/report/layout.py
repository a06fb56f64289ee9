"""Tables that fit a terminal: shared by all commands and the HTML report. Imports no torch.

A table that is too wide first loses the blanks between its columns, then its least important columns, which a line
below it names. A table without columns to spare is printed with a line per value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_core.study.report.formats import UNKNOWN, printable, visible, visible_line, wrapped

_MIN_TEXT = 24
"""Characters that a column of running text keeps, if it has as many."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: Its heading; a line break splits it on a terminal and becomes a space elsewhere.
        numeric: Whether its cells are numbers, which are aligned to the right.
        spare: 0 if the column is always shown. On a narrow terminal the column with the largest number goes first.
        wraps: Whether its cells are running text, which may be broken between words.
        note: What it shows, for a line below the table; several columns may share one.
    """

    heading: str
    numeric: bool = True
    spare: int = 0
    wraps: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The heading in one line."""
        return self.heading.replace("\n", " ").strip()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: The text of each cell.
        style: Of the row, such as "dim" for the baseline and "red" for a failed run.
        shades: How strongly each cell is colored in the report, from 0; empty if none is.
    """

    cells: tuple[str, ...]
    style: str = ""
    shades: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table, which rich prints.

    Attributes:
        columns: The columns.
        rows: The rows.
        notes: Lines below the table.
        title: Line above the table, if there is one.
        unknown: What `UNKNOWN` means in its cells.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    title: str | None = None
    unknown: str = "not measured"

    def all_notes(self) -> list[str]:
        """Return the lines below the table, what its columns show and what `UNKNOWN` means among them."""
        notes = [*self.notes, *(column.note for column in self.columns if column.note)]
        if any(cell == UNKNOWN for row in self.rows for cell in row.cells):
            notes.append(f"{UNKNOWN}: {self.unknown}.")
        return list(dict.fromkeys(notes))

    def of(self, columns: Sequence[int]) -> Self:
        """Return the table with some of its columns, by their indices."""
        return replace(
            self,
            columns=tuple(self.columns[index] for index in columns),
            rows=tuple(Row(tuple(row.cells[index] for index in columns), row.style) for row in self.rows),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Fit the table to the console. Print it with `crop=False`: a name may be longer than a line."""
        if self.title is not None:
            yield Prose(visible_line(self.title), "bold")
        table, left_out = self, list[Column]()
        spare = sorted((one for one in table.columns if one.spare), key=lambda one: -one.spare)
        while (fitting := _fitting(table, options)) is None and spare:
            left_out.append(spare.pop(0))
            table = table.of([index for index, one in enumerate(table.columns) if one is not left_out[-1]])
        if fitting is not None:
            yield fitting
        elif left_out:
            grid, width = _grid(table, options, padding=0)
            grid.width = width  # a name is wider than the terminal
            yield grid
        else:
            yield from _line_per_value(table, options)
        yield from _notes(table, [one for one in self.columns if one in left_out], options.max_width)


@dataclass(frozen=True)
class Prose:
    """A paragraph that rich prints broken between words; what is in backquotes stays whole.

    Attributes:
        text: The text.
        style: Its style, in the notation of rich.
    """

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        line = wrapped(printable(visible(self.text), options.encoding), options.max_width)
        yield Text(line, style=self.style, no_wrap=True, overflow="ignore")


def _fitting(table: ReportTable, options: ConsoleOptions) -> Table | None:
    """Return the table in the widest form that fits; None if none does."""
    for padding in (1, 0):
        grid, width = _grid(table, options, padding)
        if width <= options.max_width:
            return grid
    return None


def _grid(table: ReportTable, options: ConsoleOptions, padding: int) -> tuple[Table, int]:
    """Return the table for rich with some blanks between columns, and the least width that it needs."""
    blank = "    \n"
    plain = Box(f"{blank}{blank} -- \n{blank * 5}", ascii=True)
    grid = Table(header_style="bold", box=plain if options.ascii_only else SIMPLE_HEAD, padding=(0, padding, 0, 0))

    def text(cell: str) -> Text:
        # Text, as rich would read `[...]` in a string as markup.
        return Text(printable(visible_line(cell), options.encoding))

    width = len(table.columns) * (1 + padding) + 1
    for index, column in enumerate(table.columns):
        heading = Text(printable(visible(column.heading), options.encoding))
        cells = max((text(row.cells[index]).cell_len for row in table.rows), default=0)
        least = max(heading.cell_len if "\n" not in heading.plain else 0, min(cells, _MIN_TEXT))
        if not column.wraps:
            least = max(cells, *(line.cell_len for line in heading.split()))
        width += least
        justify: JustifyMethod = "right" if column.numeric else "left"
        grid.add_column(heading, justify=justify, min_width=least, overflow="fold", no_wrap=not column.wraps)
    for row in table.rows:
        grid.add_row(*map(text, row.cells), style=row.style or None)
    return grid, width


def _line_per_value(table: ReportTable, options: ConsoleOptions) -> Iterator[RenderableType]:
    """Yield each row as its first cell and a line for each further one that is not empty."""
    _, *others = table.columns
    margin = max(len(column.name) for column in others) + 4
    for row in table.rows:
        first, *cells = (printable(visible_line(cell), options.encoding) for cell in row.cells)
        yield Text(first, style=f"bold {row.style}".strip(), no_wrap=True, overflow="ignore")
        for column, cell in zip(others, cells, strict=True):
            if cell:
                line = wrapped(f"  {column.name:<{margin - 2}}{cell}", options.max_width, " " * margin)
                yield Text(line, style=row.style, no_wrap=True, overflow="ignore")
    yield Text()


def _notes(table: ReportTable, left_out: Sequence[Column], width: int) -> Iterator[RenderableType]:
    notes = table.all_notes()
    if left_out:
        names = ", ".join(column.name for column in left_out)
        notes.append(f"Left out to fit {width} columns: {names}. `--wide` shows all.")
    return (Prose(note, "dim italic") for note in notes)
