"""Files and folders that users name: reading them, and writing them completely or not at all. Imports no torch.

Inside `reading`, what the system says becomes an error that names the file::

    path = input_path(config.file, folder)
    with reading(path, ConfigError, "a table"), open_text(path) as lines:
        ...

A trainer calls `check_output` before it starts and writes inside `writing_file` or `writing_folder`::

    check_output(config.output, config.overwrite)
    ...  # the work
    with writing_file(config.output) as temporary:
        temporary.write_text(table)
"""

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from specdec_core.interface.errors import ConfigError, SpecdecError, shortened


def input_path(path: str | Path, folder: Path = Path(), error: type[SpecdecError] = ConfigError) -> Path:
    """Return the path of a file or folder that a user names, which need not exist.

    Args:
        path: As written; `~` is a home folder.
        folder: Base for relative paths.
        error: The error to raise.

    Raises:
        SpecdecError: The home folder does not exist, the name is not allowed, or permission is missing.
    """
    try:
        found = folder / Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            found.stat()
    except (OSError, RuntimeError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise error(f"{shortened(str(path))}: cannot be read: {reason}.") from cause
    return found


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a text file in UTF-8, with or without a byte order mark; a file whose name ends in `.gz` is unpacked.

    Args:
        path: The file.
        newline: As for `open`.
    """
    if path.suffix.lower() == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8-sig", newline=newline))
    return path.open(encoding="utf-8-sig", newline=newline)


def in_the_way(folder: Path, error: OSError) -> str:
    """Return why nothing can be written in a folder, which need not exist."""
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        return f"{there} is not a folder"
    return f"nothing can be written in {there} ({error.strerror or error})"


def check_output(path: Path, overwrite: bool, *, folder_with: str | None = None) -> None:
    """Reject an output path that cannot be written, or that holds something that must not be replaced.

    Call it before work that may take hours.

    Args:
        path: Path of the result.
        overwrite: Whether an existing result may be replaced.
        folder_with: None when the result is a file. For a folder, the name of a file that every such result
            holds: a folder without it is something else and is never replaced. An empty folder may be used.

    Raises:
        ConfigError: With what is in the way and what to do.
    """
    final = input_path(path.absolute()).resolve()
    above = next(parent for parent in final.parents if parent.exists())
    kinds, folder = ("a file", "a folder"), folder_with is not None
    others = final.is_dir() and any(final.iterdir())
    problem = None
    if final.exists() and final.is_dir() != folder:
        problem = f"is {kinds[final.is_dir()]}, and {kinds[folder]} goes there"
    elif not above.is_dir():
        problem = f"cannot be written: {above} is not a folder"
    elif not os.access(above, os.W_OK | os.X_OK):
        problem = f"cannot be written: nothing may be written in {above}"
    elif folder and Path.cwd().is_relative_to(final):
        problem = "is the folder you are in, or holds it"
    elif others and not (final / str(folder_with)).is_file():
        problem = f"is a folder with other things in it (but no {folder_with}), which stay"
    elif (others or final.is_file()) and not overwrite:
        problem = "is there already; --overwrite replaces it"
    if problem is not None:
        raise ConfigError(f"output {path} {problem}. Give another --output.")


@contextmanager
def writing_file(path: Path) -> Iterator[Path]:
    """Yield a path for a file that is moved to its final name when the block succeeds.

    The temporary file has the same name, in a hidden folder beside `path`; folders above are made. What is at
    `path` stays until it is replaced in one go. When anything is raised, Ctrl-C included, nothing is left behind.

    Args:
        path: The file to write or replace. A link is followed.

    Raises:
        ConfigError: It cannot be written: what the system said.
    """
    with _beside(path) as (temporary, final):
        yield temporary
        _share([temporary])
        temporary.replace(final)


def write_text_file(path: Path, text: str) -> None:
    """Write a text file in UTF-8, as `writing_file` does."""
    with writing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_to(path: Path, data: bytes) -> None:
    """Append to a file, whose content is on the disk when this returns.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that is moved to its final name when the block succeeds.

    As `writing_file`, but a folder cannot be replaced in one go: between taking the old one away and putting the
    new one there, there is none. All of the old one is deleted, so ask `check_output` first.

    Args:
        path: The folder to write or replace. A link is followed.

    Raises:
        ConfigError: It cannot be written: what the system said.
    """
    with _beside(path) as (temporary, final):
        temporary.mkdir()
        yield temporary
        _share([file for file in temporary.rglob("*") if file.is_file()])
        replaced = final.rename(temporary.parent / "..replaced") if final.exists() else None
        try:
            temporary.rename(final)
        except OSError:
            if replaced is not None:
                replaced.rename(final)
            raise


def _share(files: list[Path]) -> None:
    """Give files the default permissions: safetensors writes files that only the owner can read."""
    for file in files:
        probe = file.with_name(f"{file.name}.rights")
        probe.touch()
        file.chmod(probe.stat().st_mode)
        probe.unlink()


@contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a temporary path on the file system of the final path, and that path; clean up in the end."""
    final = path.resolve()
    missing = [parent for parent in final.parents if not parent.exists()]
    hidden: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{final.name[:100]}.", suffix=".part", dir=final.parent))
        yield hidden / final.name, final
    except OSError as error:
        why = in_the_way(final.parent, error)
        raise ConfigError(f"output {path} cannot be written: {why}. Give another --output.") from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)
        for parent in () if final.exists() else missing:
            with suppress(OSError):
                parent.rmdir()
