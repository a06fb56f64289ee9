"""A writer of records, shard by shard, so that a stop loses at most the shard under way.

Importing this imports no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, differences
from specdec_core.interface.files import writing_file
from specdec_core.offline.record.format import (
    HEADER,
    PromptColumns,
    Record,
    RecordedText,
    RecordHeader,
    VerifyTimes,
)
from specdec_core.offline.record.reader import (
    FEATURES,
    PROMPTS,
    TOKENIZER,
    part_folder,
    read_header,
    read_record,
    shards_of,
)
from specdec_core.offline.record.shards import shard_name, write_shard

_OURS = re.compile(r"\.lock|features\.safetensors|tokenizer|part-\d+|\.(record|features|tokenizer).*\.part")
"""Names of what a stopped recording may have left in its folder."""
_MAX_SHOWN = 3
"""The most differences between two records that a message names."""


class RecordWriter:
    """Appends texts to a record: a new one, or an unfinished one with the same header.

    Args:
        path: Folder of the record; created if it does not exist.
        header: The header. T(k) is not part of what must be equal: it is added at the end.
        fresh: Discard the record that is in the folder.

    Raises:
        ConfigError: The folder holds another record, or other things, or cannot be written.

    Attributes:
        path: The folder.
        header: The content of `record.json`.
    """

    def __init__(self, path: Path, header: RecordHeader, *, fresh: bool = False) -> None:
        self.path = path
        check_folder(path)
        if fresh:
            _discard(path)
        if (path / HEADER).exists():
            header = _resumed(path, header)
        else:
            _write_header(path, header)
        self.header = header
        parts = read_record(path).parts
        self._done = [len(part) + part.outgrown for part in parts]
        self._shards = [len(shards_of(part_folder(path, number))) for number in range(len(parts))]
        for number in range(len(parts)):
            _sweep(part_folder(path, number))

    @property
    def done(self) -> tuple[int, ...]:
        """Number of texts of each part that are stored, turns that outgrew the context included."""
        return tuple(self._done)

    @property
    def finished(self) -> bool:
        """Whether all texts are stored."""
        return all(done == part.texts for done, part in zip(self._done, self.header.parts, strict=True))

    def append(self, part: int, texts: Sequence[RecordedText], outgrown: int = 0) -> None:
        """Store the next texts of a part as a shard; they are on the disk when this returns.

        Args:
            part: Number of the part.
            texts: The texts that follow those that are stored, by prompt and sample.
            outgrown: Number of turns among them that were not decoded, as their conversations had outgrown the
                context.

        Raises:
            ConfigError: The shard cannot be written.
        """
        write_shard(
            part_folder(self.path, part) / shard_name(self._shards[part]),
            texts,
            self._done[part],
            self.header,
            self.header.parts[part],
            outgrown,
        )
        self._shards[part] += 1
        self._done[part] += len(texts) + outgrown

    def add_columns(self, part: int, columns: Iterable[PromptColumns]) -> None:
        """Store what is known of each prompt of a part, replacing what is there."""
        path = part_folder(self.path, part) / PROMPTS
        text = "".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in columns)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(exist_ok=True)
        with writing_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(text)

    def add_times(self, times: VerifyTimes) -> None:
        """Store T(k), replacing any that is there."""
        self.header = self.header.model_copy(update={"times": times})
        _write_header(self.path, self.header)

    def record(self) -> Record:
        """Return the record as it is on the disk."""
        return read_record(self.path)


def check_folder(path: Path) -> None:
    """Reject a folder with other things in it than a record, or than what is left of one.

    Raises:
        ConfigError: With what is in the way.
    """
    if path.is_dir() and not (path / HEADER).is_file():
        if others := [entry.name for entry in path.iterdir() if not _OURS.match(entry.name)]:
            raise ConfigError(
                f"output {path} is a folder with other things in it ({others[0]}), and no record; give another "
                "--output."
            )
    elif path.exists() and not path.is_dir():
        raise ConfigError(f"output {path} is a file, and a record is a folder; give another --output.")


def _resumed(path: Path, header: RecordHeader) -> RecordHeader:
    """Return the header of the record in the folder, which must be that of the same record."""
    there = read_header(path)
    differ = differences(_compared(there), _compared(header))
    if differ:
        shown = "; ".join(differ[:_MAX_SHOWN])
        raise ConfigError(
            f"{path} holds another record ({shown}). Choose another --output, or pass --fresh to start over there."
        )
    return there


def _compared(header: RecordHeader) -> dict[str, Any]:
    return header.model_dump(mode="json", exclude={"times"})


def _write_header(path: Path, header: RecordHeader) -> None:
    with writing_file(path / HEADER) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(header.model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _discard(path: Path) -> None:
    """Delete the files of a record; whatever else is in the folder stays."""
    (path / HEADER).unlink(missing_ok=True)  # first: without it, the rest is not a record
    (path / FEATURES).unlink(missing_ok=True)
    shutil.rmtree(path / TOKENIZER, ignore_errors=True)
    for folder in path.glob("part-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Delete what a killed recording left of the shard that it was writing."""
    for left in folder.glob(".shard-*.part"):
        shutil.rmtree(left, ignore_errors=True)
