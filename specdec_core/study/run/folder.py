"""The folder of results: one running study at a time. Importing this imports no torch."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from specdec_core.interface.errors import SpecdecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK = ".lock"
"""Name of the empty file that is locked while a study runs."""


JOURNAL = "repeats.jsonl"
"""Name of the journal, with one object per line: the study's provenance, then each finished repeat."""
RESULTS = "results.jsonl"
"""The file with one object per run."""
OUTPUTS = "outputs.jsonl"
"""The file with one object per run and prompt."""
SUMMARY = "summary.csv"
"""The file with one row per run, and one for each of its groups of prompts."""
REPORT = "report.html"
"""The report for readers."""


FILES = (LOCK, JOURNAL, RESULTS, SUMMARY, OUTPUTS, REPORT)
"""Names of all files that a study writes into its folder."""


RESUMED = "Run the same command again to resume."
"""The end of a message about what is stored."""


class StorageError(SpecdecError):
    """Results cannot be stored: no space, no permission, or another study is running in the folder."""


@contextmanager
def when_stopped(message: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C say what is stored.

    Args:
        message: Returns what is stored, and how to go on.

    Raises:
        KeyboardInterrupt: The one that was raised, of the class that tells what stopped it.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = (message(),)
        raise


def make_folder(folder: Path) -> None:
    """Create a folder for results if it does not exist.

    Raises:
        StorageError: If it cannot be created, or one of the files that will be written there is a link or a
            pipe.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [path for name in FILES if os.path.lexists(path := folder / name)]
        links = [path for path in there if path.is_symlink()]
        others = [path for path in there if not path.is_file() and not path.is_dir()]
    except OSError as error:
        raise cannot_store(folder, error) from error
    if links:
        raise StorageError(
            f"{links[0]} is a link, and results are not written through links, which may lead to a file of "
            "somebody else. Remove it, or choose another --output."
        )
    if others:
        raise StorageError(f"{others[0]} is a pipe or a device. Remove it, or choose another --output.")


def cannot_store(folder: Path, error: OSError) -> StorageError:
    """Return the error for a folder in which nothing can be stored."""
    return StorageError(f"{folder}: results cannot be stored there: {error.strerror or error}.")


def check_free(folder: Path, what: str = "study") -> None:
    """Check that results can be stored in a folder, before torch and a model are loaded.

    Args:
        folder: Created if it does not exist.
        what: What may be running there, for the message.

    Raises:
        StorageError: As for `exclusive_lock`, which the run itself takes.
    """
    with exclusive_lock(folder, what):
        pass


@contextmanager
def exclusive_lock(folder: Path, what: str = "study") -> Iterator[None]:
    """Keep other studies out of a folder of results while this one runs.

    The operating system drops the lock when the process ends, even if it is killed. On a file system without
    locks, nothing is locked.

    Args:
        folder: Created if it does not exist.
        what: What is running, for the message.

    Raises:
        StorageError: If another study is running there, or the folder cannot be created.
    """
    make_folder(folder)
    with _locked(folder / LOCK, f"{folder}: another {what} is running and stores its results there."):
        yield


@contextmanager
def exclusive_output(path: Path, what: str) -> Iterator[None]:
    """Keep other processes from making the same file or folder while this one does.

    The lock is an empty file beside it, which is deleted in the end. A file system without locks is not an error.

    Args:
        path: The file or folder; folders above it are created, and deleted if they stay empty.
        what: What is running, for the message.

    Raises:
        StorageError: If another one is making it.
    """
    with ExitStack() as after:
        with suppress(OSError, ValueError):  # `check_output` says what is wrong
            lock = _beside(path, after)
            after.enter_context(_locked(lock, f"{path}: another {what} is running and writes there."))
            after.callback(_delete, lock)
        yield


def _beside(path: Path, after: ExitStack) -> Path:
    """Return the path of a lock beside an output, in a folder that exists."""
    final = path.resolve()
    missing = [parent for parent in final.parents if not parent.exists()]
    for parent in reversed(missing):
        after.callback(_delete, parent)
    final.parent.mkdir(parents=True, exist_ok=True)
    return final.with_name(f".{final.name}.lock")


def _delete(path: Path) -> None:
    """Delete a lock, or an empty folder, if that is possible."""
    with suppress(OSError):
        path.rmdir() if path.is_dir() else path.unlink()


@contextmanager
def _locked(path: Path, refusal: str) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise StorageError(f"{refusal} Wait until it has finished, or choose another --output.") from error
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()
