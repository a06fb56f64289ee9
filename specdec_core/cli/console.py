"""Where output goes: results to standard output, everything else to standard error."""

import logging

from rich.console import Console

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

# Tables that go to a file or a pipe are not folded to a terminal's width.
_WIDTH_OF_FILES = 200


def output_console() -> Console:
    """Return a console for results."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def error_console() -> Console:
    """Return a console for progress and errors."""
    return Console(stderr=True, highlight=False)


def quieten_libraries() -> None:
    """Keep the progress bars and advice of transformers out of our output. Imports transformers."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.ERROR)
