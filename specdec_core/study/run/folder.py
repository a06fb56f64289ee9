"""The folder of results: one running study at a time. Importing this imports no torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specdec_core.interface.errors import SpecdecError
from specdec_core.interface.files import in_the_way

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
        StorageError: If it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_store(folder, error) from error


def cannot_store(folder: Path, error: OSError) -> StorageError:
    """Return the error for a folder in which nothing can be stored."""
    return StorageError(f"{folder}: results cannot be stored: {in_the_way(folder, error)}. Give another --output.")


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
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise StorageError(
            f"{folder}: another {what} is running and stores its results there. Wait until it has finished, or "
            "choose another --output."
        ) from error
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()
