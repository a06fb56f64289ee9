"""A folder of results belongs to one running study at a time. Importing this imports no torch."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from specdec_core.study.journal import StorageError, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"
"""The file that is locked; empty."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keep other studies out of a folder of results while this one runs.

    The lock is one of the operating system, which SQLite knows how to ask for everywhere: it ends with the
    process, also with one that is killed, and the empty file that stays behind locks nothing.

    Args:
        folder: Made if it is missing.

    Raises:
        StorageError: Another study is running there, or the folder cannot be made.
    """
    make_folder(folder)
    with ExitStack() as stack:
        try:
            file = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
            stack.callback(file.close)
            file.execute("PRAGMA journal_mode = OFF")
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            # Where a file system has no locks, nobody can be kept out; a folder without room the journal tells.
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise StorageError(
                    f"{folder}: another study is running and keeps its results there. Wait until it is finished, "
                    "or choose another --output."
                ) from error
        yield
