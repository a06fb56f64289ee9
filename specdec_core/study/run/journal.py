"""The journal of a study: every finished repeat is on disk before the next begins, so a stopped study resumes.

The journal is `repeats.jsonl`: the study's provenance, then each finished repeat.
`specdec_core.study.report.result_files` writes `results.jsonl` from the finished study.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specdec_core.interface.errors import ConfigError, differences, exception_text
from specdec_core.study.run.finished_repeats import Repeat, RepeatKey, Repeats
from specdec_core.study.run.folder import JOURNAL, StorageError, cannot_store, make_folder

_REPEAT = TypeAdapter(Repeat)


class Journal:
    """The file `repeats.jsonl` in a folder of results.

    A repeat in which a plugin failed is not finished, and neither is one of a run whose plugins have changed.

    Attributes:
        path: Its path.
        finished: The finished repeats.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Open the journal and read the finished repeats.

        A last line that was cut off when the study was stopped is removed: its repeat is timed again.

        Args:
            folder: Created if it does not exist.
            provenance: Everything that must be equal for results to belong together: settings, versions, device;
                and `plugins`, the code that each run uses now.
            fresh: Discard what an earlier study left in the folder.

        Raises:
            ConfigError: If the folder holds the repeats of another study or another version of specdec, or the
                journal has a line that is not a repeat.
            StorageError: If the folder cannot be written.
        """
        self.path = folder / JOURNAL
        self.finished = Repeats()
        self._plugins = provenance.get("plugins", {})
        provenance = {key: value for key, value in provenance.items() if key != "plugins"}
        make_folder(folder)
        try:
            content = b"" if fresh or not self.path.exists() else self.path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole:
                self._read(whole.splitlines(), provenance)
            with self.path.open("ab") as file:
                file.truncate(len(whole))
        except OSError as error:
            raise cannot_store(folder, error) from error
        if not whole:
            self._append({"fingerprint": _fingerprint(provenance), "study": provenance})

    def add(self, repeat: Repeat) -> None:
        """Record a finished repeat; it is on disk when this returns."""
        self._append({**asdict(repeat), "plugins": self._plugins.get(repeat.run, {})})
        self.finished.add(repeat)

    def _read(self, lines: list[bytes], provenance: Mapping[str, Any]) -> None:
        again: dict[RepeatKey, str] = {}
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if number > 1:
                    changes = differences(entry.pop("plugins"), self._plugins.get(entry["run"], {}))
                    repeat = _REPEAT.validate_python(entry)
                    if changes:
                        again[repeat.key] = f"the code of its plugins has changed ({'; '.join(changes)})"
                    elif repeat.failures:
                        again[repeat.key] = "a plugin failed"
                    else:
                        self.finished.add(repeat)
                    continue
                found, there = entry["fingerprint"], entry["study"]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.path}:{number}: not a line of this version's journal ({exception_text(error)}). "
                    "Remove the line, choose another --output, or pass --fresh to start over there."
                ) from error
            if found != _fingerprint(provenance):
                changes = differences(there, json.loads(json.dumps(provenance)))[:3]
                raise ConfigError(
                    f"{self.path.parent} holds the results of another study ({'; '.join(changes)}). "
                    "Choose another --output, or pass --fresh to start over there."
                )
        left = {(key[1], why) for key, why in again.items() if key not in self.finished}
        for run, why in sorted(left):
            warnings.warn(f"{self.path.parent}: run again: {run!r}, as {why}.", RuntimeWarning, stacklevel=2)

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be written: {error.strerror or error}. {len(self.finished)} finished "
                "repeat(s) are stored there. Make room, and run the same command again to resume."
            ) from error


def _fingerprint(provenance: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:16]
