"""Files and folders that users name: reading them, and writing them completely or not at all. Imports no torch.

What a path leads to may be anything: a device that never ends, a pipe that nobody writes to, a file larger than
the memory. `open_input` and `open_text` read files only, up to a size, and say otherwise what is there::

    path = input_path(config.file, folder)
    with reading(path, ConfigError, "a table"), open_text(path) as lines:
        ...

A trainer calls `check_output` before it starts and writes inside `writing_file` or `writing_folder`::

    check_output(config.output, config.overwrite)
    ...  # the work
    with writing_file(config.output) as temporary:
        temporary.write_text(table)
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_core.interface.errors import ConfigError, SpecdecError, shortened

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BYTES = 1 << 30
"""The most that is read of a file, unless the caller sets another limit."""

_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Names of what the shell has opened for us: standard input, and `<(command)`."""
_OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What a full or failing disk says; such an error often names no file.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
# How safetensors and tokenizers, which are written in Rust, pass on an error of the system.
_RUST = re.compile(r"\(os error (\d+)\)")


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
    except RuntimeError as cause:
        raise error(
            f"{path}: the home folder {Path(path).parts[0]} does not exist; write the path in full."
        ) from cause
    try:
        found.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError as cause:
        raise error(
            f"{path}: this is not a path: it has half of a surrogate pair (\\ud800 to \\udfff)."
        ) from cause
    except ValueError as cause:
        raise error(f"{shortened(str(path))}: this is not a path: it has a NUL character.") from cause
    except OSError as cause:
        raise error(f"{shortened(str(path))}: cannot be read: {cause.strerror or cause}.") from cause
    return found


def open_input(path: Path, limit: int = MAX_BYTES) -> io.BufferedReader:
    """Open a file to read its bytes.

    Args:
        path: A file, `/dev/stdin`, or what the shell has opened, such as `/dev/fd/63`.
        limit: The most bytes to read.

    Returns:
        The file. Reading more than the limit raises an OSError.

    Raises:
        OSError: It cannot be opened, or is not a file: a folder, a device, a pipe. `reading` makes it a message.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind in _OTHERS and not str(path).startswith(_STREAMS):
        raise OSError(errno.EINVAL, f"it is {_OTHERS[kind]}; a file is needed")
    return io.BufferedReader(_Limited(path, limit))


def open_text(path: Path, limit: int = MAX_BYTES, newline: str | None = None) -> io.TextIOWrapper:
    """Open a file to read its text, which is UTF-8. A byte order mark, which some editors write, is skipped.

    Args:
        path: As for `open_input`.
        limit: The most bytes to read.
        newline: As for `open`.

    Raises:
        OSError: As for `open_input`.
    """
    return io.TextIOWrapper(open_input(path, limit), encoding="utf-8-sig", newline=newline)


class _Limited(io.RawIOBase):
    """A file of which no more than some bytes can be read."""

    def __init__(self, path: Path, limit: int) -> None:
        self._file = io.FileIO(path)
        self._limit = self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int | None:
        count = self._file.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise OSError(errno.EFBIG, f"it has more than {self._limit:,} bytes, the most that is read")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


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
    wanted = input_path(path.absolute()).resolve()
    if wanted.is_dir():
        _check_folder(path, overwrite, folder_with)
    elif wanted.exists() and (folder_with is not None or not wanted.is_file()):
        found = "a file" if wanted.is_file() else "neither a file nor a folder"
        kind = "file" if folder_with is None else "folder"
        raise ConfigError(f"output {path} is {found}, and a {kind} goes there; give another --output.")
    elif wanted.exists() and not overwrite:
        raise ConfigError(_there(path))
    _check_writable(path)


def _check_folder(path: Path, overwrite: bool, folder_with: str | None) -> None:
    if folder_with is None:
        raise ConfigError(f"output {path} is a folder, and a file goes there; give the name of a file in it.")
    if Path.cwd().is_relative_to(path.resolve()):
        raise ConfigError(f"output {path} is the folder you are in, or holds it; give a separate one.")
    if not any(path.iterdir()):
        return
    if not (path / folder_with).is_file():
        raise ConfigError(
            f"output {path} is a folder with other things in it (but no {folder_with}), which stay; "
            "give another --output."
        )
    if not overwrite:
        raise ConfigError(_there(path))


def _check_writable(path: Path) -> None:
    there = next(parent for parent in path.resolve().parents if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"output {path}: {there} is not a folder; give another --output.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"output {path}: nothing may be written in {there}; give another --output.")


def _there(path: Path) -> str:
    return f"output {path} is there already; --overwrite replaces it, or give another --output."


@contextmanager
def writing_file(path: Path, *, through_links: bool = True) -> Iterator[Path]:
    """Yield a path for a file that is moved to its final name when the block succeeds.

    The temporary file has the same name, in a hidden folder beside `path`; folders above are made. What is at
    `path` stays until it is replaced in one go. When anything is raised, Ctrl-C included, nothing is left behind.

    Args:
        path: The file to write or replace.
        through_links: Whether a link at `path` is followed; otherwise the file replaces it. In a folder in which
            others may write, they may have put it there.

    Raises:
        ConfigError: It cannot be written: what the system said, and what to do.
    """
    final = path.resolve() if through_links else path.parent.resolve() / path.name
    with _beside(path, final) as temporary:
        yield temporary
        _open_up([temporary])
        temporary.replace(final)


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that is moved to its final name when the block succeeds.

    As `writing_file`, but a folder cannot be replaced in one go: between taking the old one away and putting the
    new one there, there is none. All of the old one is deleted, so ask `check_output` first.

    Args:
        path: The folder to write or replace. A link is followed.

    Raises:
        ConfigError: It cannot be written: what the system said, and what to do.
    """
    final = path.resolve()
    with _beside(path, final) as temporary:
        temporary.mkdir()
        yield temporary
        _open_up([file for file in temporary.rglob("*") if file.is_file()])
        old = temporary.with_name("old") if temporary.name != "old" else temporary.with_name("older")
        replaces = final.exists()
        if replaces:
            final.rename(old)
        try:
            temporary.rename(final)
        except BaseException:
            if replaces:
                old.rename(final)
            raise


def _open_up(files: list[Path]) -> None:
    """Give files the default permissions: some libraries write files that only the owner can read."""
    for file in files:
        probe = file.with_name(f"{file.name}.rights")
        probe.touch()
        file.chmod(probe.stat().st_mode)
        probe.unlink()


@contextmanager
def _beside(path: Path, final: Path) -> Iterator[Path]:
    """Yield a temporary path on the file system of the final path; clean up on success and failure."""
    missing = [parent for parent in final.parents if not parent.exists()]
    hidden: Path | None = None
    whole = False
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{final.name[:100]}.", suffix=".part", dir=final.parent))
        yield hidden / final.name
        whole = True
    except Exception as error:
        found = _system_error(error)
        if found is None or (hidden is not None and not _is_ours(found, hidden)):
            raise
        reason = found.strerror or found
        raise ConfigError(
            f"output {path} cannot be written: {reason}; make room for it or give another --output."
        ) from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)
        if not whole:
            for parent in missing:
                with suppress(OSError):
                    parent.rmdir()


def _system_error(error: Exception) -> OSError | None:
    """Return what the system said, also where a library made another exception of it."""
    if isinstance(error, OSError):
        return error
    found = None if isinstance(error, SpecdecError) else _RUST.search(str(error))
    return OSError(number := int(found[1]), os.strerror(number)) if found else None


def _is_ours(error: OSError, hidden: Path) -> bool:
    """Whether an error is about the output, rather than about something that was read meanwhile."""
    named = [name for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
    return error.errno in _DISK or any(Path(name).is_relative_to(hidden) for name in named)
