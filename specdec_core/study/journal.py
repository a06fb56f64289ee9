"""The journal of a study: a finished repeat is on disk before the next begins, so a stopped study resumes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_core.errors import ConfigError, SpecdecError

JOURNAL = "repeats.jsonl"
"""The file with one object a repeat, from which a study goes on."""


class StorageError(SpecdecError):
    """Results cannot be written: no space, no permission, no such folder."""


@dataclass(frozen=True)
class Output:
    """What was decoded from one prompt.

    Attributes:
        tokens: Ids of the new tokens.
        text: The same as text; None where the target has no tokenizer.
    """

    tokens: tuple[int, ...]
    text: str | None


@dataclass(frozen=True)
class Repeat:
    """One run's pass over all prompts of a task.

    Attributes:
        task: Name of the task; None where the study names none.
        run: Name of the run.
        repeat: Number of the pass, from 1.
        metrics: The raw counters of the decoder's metrics.
        failures: What went wrong in plugins, as plain data.
        outputs: What was decoded from each prompt.
        device: Where the target computed; that of the study's first target where a journal does not say.
    """

    task: str | None
    run: str
    repeat: int
    metrics: Mapping[str, Any]
    failures: tuple[Mapping[str, Any], ...]
    outputs: tuple[Output, ...]
    device: str | None = None

    @property
    def key(self) -> tuple[str | None, str, int]:
        """What tells it from the other repeats of a study."""
        return self.task, self.run, self.repeat

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> Repeat:
        """Return the repeat that a line of a journal holds."""
        outputs = tuple(Output(tuple(one["tokens"]), one["text"]) for one in entry["outputs"])
        return cls(**{**entry, "failures": tuple(entry["failures"]), "outputs": outputs})


class Journal:
    """The file `repeats.jsonl` in a folder of results: a line on the study, then one for each finished repeat."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open the journal and read what is finished.

        Args:
            folder: Made if it is missing.
            identity: All that must be equal for results to belong together: settings, versions, device.
            fresh: Forget what an earlier study left there.

        Raises:
            ConfigError: When the folder holds the repeats of another study.
            StorageError: When it cannot be written.
        """
        self.path = folder / JOURNAL
        self.finished: dict[tuple[str | None, str, int], Repeat] = {}
        make_folder(folder)
        try:
            lines, self._size = ([], 0) if fresh else _complete_lines(self.path)
            self._read(lines, identity)
            # Cuts off a line that was torn when the study was stopped, or all that is to be forgotten.
            with self.path.open("ab") as file:
                file.truncate(self._size)
        except OSError as error:
            raise StorageError(f"{folder}: results cannot be kept there: {error.strerror or error}.") from error
        if not lines:
            self._append({"fingerprint": fingerprint(identity), "study": identity})

    def add(self, repeat: Repeat) -> None:
        """Note a finished repeat; when this returns, it is on disk."""
        self._append(asdict(repeat))
        self.finished[repeat.key] = repeat

    def _read(self, lines: list[Any], identity: Mapping[str, Any]) -> None:
        if not lines:
            return
        head = lines[0]
        if not isinstance(head, dict) or head.get("fingerprint") != fingerprint(identity):
            before = head.get("study") if isinstance(head, dict) else None
            changes = "; ".join(_differences(before, _plain(identity))[:3]) or "the file is of another kind"
            raise ConfigError(
                f"{self.path.parent} holds the results of another study ({changes}). "
                "Choose another --output, or pass --fresh to begin again there."
            )
        for entry in lines[1:]:
            repeat = Repeat.from_plain(entry)
            self.finished[repeat.key] = repeat

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        try:
            _append_durably(self.path, line)
        except OSError as error:
            _cut(self.path, self._size)
            raise StorageError(_not_written(self.path, error, len(self.finished))) from error
        self._size += len(line)


def make_folder(folder: Path) -> None:
    """Make a folder for results, if it is missing.

    Raises:
        StorageError: When that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: results cannot be kept there: {error.strerror or error}.") from error


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Return a short text that is equal for equal identities only."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part.

    Raises:
        StorageError: When it cannot be written; what was there before stays.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(f"{path} could not be written: {error.strerror or error}.") from error


def _append_durably(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _cut(path: Path, size: int) -> None:
    """Remove a line of which only a part was written. Shortening a file needs no space."""
    with suppress(OSError):  # the next call leaves out a torn line in any case
        os.truncate(path, size)


def _not_written(path: Path, error: OSError, finished: int) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"{path}: no space left on this disk. {finished} finished repeat(s) are kept there; "
            "make room and give the same command again to go on."
        )
    return f"{path}: cannot be written: {error.strerror or error}. {finished} finished repeat(s) are kept there."


def _complete_lines(path: Path) -> tuple[list[Any], int]:
    """Return the entries of a journal and how many bytes they take; a torn end is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    entries: list[Any] = []
    size = 0
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        entries.append(entry)
        size += len(line)
    if content and not entries and b"\n" in content:
        raise ConfigError(f"{path} is no journal of a study. Choose another --output, or pass --fresh.")
    return entries, size


def _plain(identity: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(identity))


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        inside = f"{where}." if where else ""
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{inside}{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [d for place, pair in pairs for d in _differences(*pair, f"{where}[{place}]")]
    if isinstance(before, list) and isinstance(now, list):
        return [f"{where}: {len(before)} entries there, {len(now)} now"]
    return [] if before == now else [f"{where}: {_short(before)} there, {_short(now)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
