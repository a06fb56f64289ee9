"""The journal of a study: every finished repeat is on disk before the next begins, so a stopped study resumes."""

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

from specdec_core.decoding import Metrics, PluginFailure
from specdec_core.interface.errors import ConfigError
from specdec_core.study.report.quality import Output
from specdec_core.study.run.folder import StorageError, cannot_store, make_folder

JOURNAL = "repeats.jsonl"
"""Name of the journal, with one object per line: the study's provenance, then each finished repeat."""


@dataclass(frozen=True)
class Repeat:
    """One pass of a run over all prompts of a task.

    Attributes:
        task: Name of the task; None for the only task of a study without `tasks`.
        run: Name of the run.
        repeat: Number of the pass, from 1.
        metrics: Counts and times, summed over the batches.
        failures: Plugin failures, none of which cost a token.
        outputs: The output for each prompt.
        device: Device of the target; None in journals that do not record it.
        turn: Its place in the order in which the runs of its repeat were timed, from 1; None in journals that do
            not record it.
        cpu_seconds: CPU time of the decoding thread, to compare with the wall time; None unless the target is on
            a CPU.
    """

    task: str | None
    run: str
    repeat: int
    metrics: Metrics
    failures: tuple[PluginFailure, ...]
    outputs: tuple[Output, ...]
    device: str | None = None
    turn: int | None = None
    cpu_seconds: float | None = None

    @property
    def key(self) -> tuple[str | None, str, int]:
        """Identifies the repeat within its study."""
        return self.task, self.run, self.repeat

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> Repeat:
        """Return the repeat that a line of the journal holds.

        Raises:
            ValueError: If its counters are not those of this version.
        """
        parsed = {
            "metrics": Metrics.from_plain(entry["metrics"]),
            "failures": tuple(PluginFailure(**one) for one in entry["failures"]),
            "outputs": tuple(Output(tuple(one["tokens"]), one["text"]) for one in entry["outputs"]),
        }
        return cls(**{**entry, **parsed})


class Journal:
    """The file `repeats.jsonl` in a folder of results."""

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open the journal and read the finished repeats.

        Args:
            folder: Created if it does not exist.
            provenance: Everything that must be equal for results to belong together: settings, versions, device.
            fresh: Discard what an earlier study left in the folder.

        Raises:
            ConfigError: If the folder holds the repeats of another study or another version of specdec.
            StorageError: If the folder cannot be written.
        """
        self.path = folder / JOURNAL
        self.finished: dict[tuple[str | None, str, int], Repeat] = {}
        make_folder(folder)
        try:
            lines, self._size = ([], 0) if fresh else _complete_lines(self.path)
            self._read(lines, provenance)
            # Cuts off a line that was torn when the study was stopped, or everything if `fresh`.
            with self.path.open("ab") as file:
                file.truncate(self._size)
        except OSError as error:
            raise cannot_store(folder, error) from error
        if not lines:
            self._append({"fingerprint": _fingerprint(provenance), "study": provenance})

    def add(self, repeat: Repeat) -> None:
        """Record a finished repeat; it is on disk when this returns."""
        self._append(asdict(repeat))
        self.finished[repeat.key] = repeat

    def _read(self, lines: list[Any], provenance: Mapping[str, Any]) -> None:
        if not lines:
            return
        head = lines[0]
        if not isinstance(head, dict) or head.get("fingerprint") != _fingerprint(provenance):
            before = head.get("study") if isinstance(head, dict) else None
            now = json.loads(json.dumps(provenance))
            changes = "; ".join(_differences(before, now)[:3]) or "the file has another format"
            raise ConfigError(
                f"{self.path.parent} holds the results of another study ({changes}). "
                "Choose another --output, or pass --fresh to start over there."
            )
        try:
            repeats = [Repeat.from_plain(entry) for entry in lines[1:]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.path} was written by another version of specdec, whose counters differ: {error}. "
                "Choose another --output, or pass --fresh to start over there."
            ) from error
        self.finished = {repeat.key: repeat for repeat in repeats}

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        try:
            _append_durably(self.path, line)
        except OSError as error:
            with suppress(OSError):  # removes a partial line; the next start ignores it in any case
                os.truncate(self.path, self._size)
            raise StorageError(_not_written(self.path, error, len(self.finished))) from error
        self._size += len(line)


def _fingerprint(provenance: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:16]


def _append_durably(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError, finished: int) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"{path}: no space left on this disk. {finished} finished repeat(s) are stored there; "
            "free some space and run the same command again to resume."
        )
    return f"{path}: cannot be written: {error.strerror or error}. {finished} finished repeat(s) are stored there."


def _complete_lines(path: Path) -> tuple[list[Any], int]:
    """Return the entries of a journal and their size in bytes, without a torn last line."""
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
        raise ConfigError(f"{path} is not the journal of a study. Choose another --output, or pass --fresh.")
    return entries, size


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
