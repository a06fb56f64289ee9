"""Finding and opening files that users name. Importing this imports no torch.

What a path leads to may be anything: a device that never ends, a pipe that nobody writes to, a file larger than
the memory. `open_input` and `open_text` read files only, up to a size, and say otherwise what is there::

    path = input_path(config.file, folder)
    with reading(path, ConfigError, "a table"), open_text(path) as lines:
        ...
"""

from __future__ import annotations

import errno
import io
import stat
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
