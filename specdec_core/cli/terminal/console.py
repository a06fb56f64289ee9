"""The consoles of the commands, which show text as it is and obey nothing in it."""

import os
import sys
import warnings
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from specdec_core.study.report.formats import printable, visible

_UNLIMITED = 100_000
"""Width of output that is not for a terminal, or wide on request: nothing is wrapped, no column left out."""


class PlainConsole(Console):
    """A console for text that others wrote: names, prompts, messages of plugins, paths.

    Whatever is printed, and wherever it stands: control sequences are made visible, `[...]` and `:name:` are not
    markup, nothing is cut at the edge, and characters that the encoding lacks are spelled out.

    Args:
        options: As those of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "markup": False, "emoji": False, "highlight": False})

    def print(self, *objects: Any, **options: Any) -> None:
        """Print without cutting lines at the edge; options are those of `rich.console.Console.print`."""
        super().print(*objects, **{"crop": False, **options})

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Return a spinner, of characters that the encoding has."""
        if self.options.ascii_only:
            options["spinner"] = "line"
        return super().status(status, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text, which makes it visible before it is laid out."""
        return super().render_str(self._shown(text), **{**options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of anything that rich can print. Only rich's own controls pass unchanged."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(self._shown(segment.text), segment.style)

    def _shown(self, text: str) -> str:
        return printable(visible(text), self.encoding)


def output_console(*, wide: bool = False) -> Console:
    """Return a console for results, on standard output.

    A terminal has its width, and the environment variable COLUMNS sets another. A file and a pipe have none, as
    with git and gh: there, and if `wide`, tables have all their columns.
    """
    limited = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return PlainConsole(width=None if limited and not wide else _UNLIMITED)


def error_console() -> Console:
    """Return a console for progress and errors, on standard error."""
    return PlainConsole(stderr=True)


def write_text(text: str) -> None:
    """Write generated text to standard output: as it is to a file or a pipe, visibly to a terminal."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def prepare_streams() -> None:
    """Let standard output and error spell out what their encoding lacks, and show warnings as other messages."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    error_console().print(f"warning: {message}", style="yellow", soft_wrap=True)
