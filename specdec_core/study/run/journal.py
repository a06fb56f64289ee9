"""The journal of a study: every finished repeat is on disk before the next begins, so a stopped study resumes.

The journal is `repeats.jsonl`; `specdec_core.study.report.result_files` writes `results.jsonl` from the finished
study.

Each line ends with a checksum over the line and the identity of its study. So whatever happens to a line, and to
that line only, is noticed: a flipped bit, an edit, a line of another journal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, differences
from specdec_core.study.run.folder import JOURNAL, StorageError, cannot_store, make_folder
from specdec_core.study.run.repeats import Repeat, Repeats

_HEAD = b'{"fingerprint"'
_CHECK = b', "crc32": '
_NAMED = 5
"""Number of lines that a warning names."""
_LONGEST_HEAD = 1 << 24
"""Most bytes of the first line, which holds settings."""


class Journal:
    """The file `repeats.jsonl` in a folder of results.

    Attributes:
        path: Its path.
        finished: The finished repeats.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open the journal and read the finished repeats.

        A line that cannot be used costs that line only: its repeat is timed again, and a warning says so.

        Args:
            folder: Created if it does not exist.
            provenance: Everything that must be equal for results to belong together: settings, versions, device.
            fresh: Discard what an earlier study left in the folder.

        Raises:
            ConfigError: If the folder holds the repeats of another study or another version of specdec.
            StorageError: If the folder cannot be written.
        """
        self.path = folder / JOURNAL
        self.finished = Repeats()
        self._fingerprint = _fingerprint(provenance)
        self._size = 0
        make_folder(folder)
        try:
            if not fresh and self.path.exists():
                self._read(provenance)
            # Cuts off a line that was torn when the study was stopped, or everything if `fresh`.
            with self.path.open("ab") as file:
                file.truncate(self._size)
        except OSError as error:
            raise cannot_store(folder, error) from error
        if not self._size:
            head = {"fingerprint": self._fingerprint, "study": provenance}
            self._append((json.dumps(head) + "\n").encode())

    def add(self, repeat: Repeat) -> None:
        """Record a finished repeat; it is on disk when this returns."""
        self._append(journal_line(repeat.to_plain(), self._fingerprint))
        self.finished.add(repeat)

    def missing(self) -> str | None:
        """Return what became of the journal since the last line was written; None if it is there as it was."""
        try:
            size = self.path.stat().st_size
        except OSError as error:
            return (
                f"{self.path} has disappeared while the study ran ({error.strerror or error}); nothing is stored."
            )
        if size == self._size:
            return None
        return f"{self.path} was changed by something else while the study ran; what it holds now is not known."

    def _read(self, provenance: Mapping[str, Any]) -> None:
        left_out: list[int] = []
        with self.path.open("rb") as file:
            lines = filter(None, chain([file.readline(_LONGEST_HEAD)], file))
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    self._check_head(line, provenance)
                if not line.endswith(b"\n"):  # the study was stopped while it wrote this line
                    left_out.append(number)
                    break
                if number > 1 and not self._keep(line):
                    left_out.append(number)
                self._size += len(line)
        if left_out:
            warnings.warn(_left_out(self.path, left_out), RuntimeWarning, stacklevel=2)

    def _keep(self, line: bytes) -> bool:
        """Keep the repeat of a line, and return whether it has one that no earlier line has."""
        body, _, check = line.rpartition(_CHECK)
        if check != _check(body, self._fingerprint):
            return False
        try:
            repeat = Repeat.from_plain(json.loads(body + b"}"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.path} was written by another version of specdec, whose counters differ: {error}. "
                "Choose another --output, or pass --fresh to start over there."
            ) from error
        if repeat.key in self.finished:
            return False
        self.finished.add(repeat)
        return True

    def _check_head(self, line: bytes, provenance: Mapping[str, Any]) -> None:
        torn = not line.endswith(b"\n")
        try:
            head = None if torn else json.loads(line)
        except (ValueError, RecursionError):
            head = None
        written_here = line.startswith(_HEAD) and len(line) < _LONGEST_HEAD if torn else isinstance(head, dict)
        if not written_here:
            raise ConfigError(
                f"{self.path} is not the journal of a study. Choose another --output, or pass --fresh."
            )
        if head is not None and head.get("fingerprint") != self._fingerprint:
            now = json.loads(json.dumps(provenance))
            changes = "; ".join(differences(head.get("study"), now)[:3]) or "the file has another format"
            raise ConfigError(
                f"{self.path.parent} holds the results of another study ({changes}). "
                "Choose another --output, or pass --fresh to start over there."
            )

    def _append(self, line: bytes) -> None:
        if (problem := self.missing()) is not None:
            raise StorageError(problem)
        try:
            _append_durably(self.path, line)
        except OSError as error:
            with suppress(OSError):  # removes a partial line; the next start ignores it in any case
                os.truncate(self.path, self._size)
            raise StorageError(_not_written(self.path, error, len(self.finished))) from error
        self._size += len(line)


def journal_line(entry: Mapping[str, Any], fingerprint: str) -> bytes:
    """Return the line of a journal for a repeat, given as plain data, of the study with a fingerprint."""
    body = json.dumps(entry).encode()[:-1]
    return body + _CHECK + _check(body, fingerprint)


def _check(body: bytes, fingerprint: str) -> bytes:
    """Return the end of a line, which holds the checksum of what precedes it."""
    return b"%d}\n" % zlib.crc32(body, zlib.crc32(fingerprint.encode()))


def _fingerprint(provenance: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:16]


def _append_durably(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError, finished: int) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{path}: no space left on this disk. {finished} finished repeat(s) are stored there; "
            "free some space and run the same command again to resume."
        )
    return f"{path}: cannot be written: {error.strerror or error}. {finished} finished repeat(s) are stored there."


def _left_out(path: Path, lines: list[int]) -> str:
    named = ", ".join(map(str, lines[:_NAMED])) + (", ..." if len(lines) > _NAMED else "")
    number = f"{len(lines)} line" + "s" * (len(lines) > 1)
    return (
        f"{path}: {number} cannot be used ({named}): cut off, damaged, of another study, or the second of a "
        "repeat. Repeats that no other line holds are timed again."
    )
