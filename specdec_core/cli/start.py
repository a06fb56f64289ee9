"""Start of the command `specdec`: signals are handled before anything large is imported."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import ClassVar

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SHOW_CURSOR = b"\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A signal that ends the command as Ctrl-C does.

    Args:
        number: The signal.
    """

    received: "ClassVar[Stopped | None]" = None
    """The first one that was raised: compiled code may replace it with an exception of its own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def main() -> None:
    """Run the command line."""
    # Of torch, which reads it before it allocates the first tensor; see `use_huge_pages`.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _handle(_end_at_once)  # there is nothing yet to tidy up, and an exception in an import may be lost
    from specdec_core.cli.main import main as run

    _handle(_stop)
    run()


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` asks for that
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    """End the command in order: `Stopped` passes through it. A second signal does not wait for that."""
    _handle(_end_at_once)
    Stopped.received = Stopped(number)
    raise Stopped.received


def _end_at_once(number: int, _: FrameType | None) -> None:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os.write(2, b"stopped.\n")
    os._exit(128 + number)
