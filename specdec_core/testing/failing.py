"""What went wrong in an author's code, told with the author's own lines."""

from __future__ import annotations

import traceback
from pathlib import Path

_KIT = Path(__file__).parent


def told(error: BaseException) -> str:
    """Return an exception with its traceback, causes first, without the lines of the kit."""
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    while one is not None:
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not Path(frame.filename).is_relative_to(_KIT)]
        )
        one = one.__cause__ or one.__context__
    return "".join(told.format()).strip()
