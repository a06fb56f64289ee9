"""Progress on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Column
from rich.text import Text

from specdec_core.study.report.formats import number, share, visible

_EVERY_SECONDS = 10.0
_REFRESHES_PER_SECOND = 4
"""A thread draws the bar; more often, it would take time from what is timed."""


class TerminalProgress:
    """Shows the progress of a study, a measurement or a training; implements `Progress`.

    Args:
        console: Where to print.
        quiet: Show nothing.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self, console: Console, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._quiet = quiet
        self._clock = clock
        self._live = console.is_terminal and not console.is_dumb_terminal and not quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        self._bar = ProgressBar(
            *columns,
            console=console,
            transient=True,
            disable=not self._live,
            expand=True,  # the note has what the others leave
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe does not disturb the bar
        )
        self._task = self._bar.add_task("", visible=False, note="")
        self._stage: str | None = None
        self._total: float | None = None
        self._began = self._printed = clock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is None:
            self._end_stage()

    def stage(self, what: str, total: float | None = None) -> None:
        """End the current stage and begin another."""
        self._end_stage()
        self._stage, self._total = what, total
        self._began = self._printed = self._clock()
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(visible(what), total=total, note="")
        if not self._live:
            self._print(f"{what} ...")

    def advance(self, done: float, note: str = "") -> None:
        """Show how much of the stage is done."""
        now = self._clock()
        if self._live:
            self._bar.update(self._task, completed=done, note=visible(note))
        elif now - self._printed >= _EVERY_SECONDS:
            self._printed = now
            much = share(min(done / self._total, 1)) if self._total else f"{value_text(done)} done"
            line = f"{self._stage}: {much} after {duration(now - self._began)}"
            self._print("  ".join(filter(None, [line, note])))

    def measured(self, point: Mapping[str, float]) -> None:
        """Show named values, such as a point of the learning curve."""
        self._print("  ".join(f"{name.replace('_', ' ')} {value_text(value)}" for name, value in point.items()))

    def _end_stage(self) -> None:
        if self._stage is not None:
            self._print(f"{self._stage}: done in {duration(self._clock() - self._began)}")
            self._stage = None

    def _print(self, text: str) -> None:
        if not self._quiet:
            # Above the bar, if there is one.
            self._console.print(Text(visible(text)), soft_wrap=True)


class NotebookProgress:
    """Shows the progress of a study in a notebook: one line with a bar, which disappears at the end.

    Needs no widgets. Implements `Progress`.
    """

    def __init__(self) -> None:
        from IPython import display as ipython

        self._shown: Any = ipython.display(_Html(""), display_id=True)
        self._stage = ""
        self._total: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.update(_Html(""))

    def stage(self, what: str, total: float | None = None) -> None:
        """Begin a stage."""
        self._stage, self._total = what, total
        self._show(None, "")

    def advance(self, done: float, note: str = "") -> None:
        """Show how much of the stage is done."""
        self._show(done, note)

    def measured(self, point: Mapping[str, float]) -> None:
        """Show named values."""
        self._show(None, "  ".join(f"{name} {value_text(value)}" for name, value in point.items()))

    def _show(self, done: float | None, note: str) -> None:
        bar = f'<progress value="{done or 0}" max="{self._total}"></progress> ' if self._total else ""
        self._shown.update(_Html(f"<div>{bar}{escape(self._stage)} <small>{escape(note)}</small></div>"))


class _Html:
    """HTML that a notebook shows, and nothing where it shows text only."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        return self._text


def value_text(value: str | float) -> str:
    """Return a value as text, with four digits unless it is a whole number."""
    if isinstance(value, str):
        return value
    number = float(value)
    return str(int(number)) if number.is_integer() else f"{number:.4g}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `4 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{number(seconds, 1)} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def quieten_libraries() -> None:
    """Silence what would tear the display: progress bars and warnings of transformers and bitsandbytes.

    Imports transformers.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.ERROR)
    # On a CPU, it logs a line for each layer of each forward pass.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Do the same until the context ends."""
    from transformers.utils import logging as transformers_logging

    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    bitsandbytes = logging.getLogger("bitsandbytes")
    before = bitsandbytes.level
    quieten_libraries()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        bitsandbytes.setLevel(before)
        if bars:
            transformers_logging.enable_progress_bar()
