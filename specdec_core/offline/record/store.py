"""The files of a record: reading them, and writing them so that a stop loses at most the batch under way.

Importing this imports no torch.
"""

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from specdec_core.interface.errors import ConfigError, differences, reading
from specdec_core.interface.files import append_to, input_path, write_text_file, writing_file
from specdec_core.interface.validated import validated
from specdec_core.offline.record.format import (
    HEADER,
    Record,
    RecordedText,
    RecordHeader,
    RecordPart,
    TextLine,
    VerifyTimes,
)
from specdec_core.registry.shipped import shipped_file
from specdec_core.study.config.prompt_file import PromptText

TOKENIZER = "tokenizer"
"""Name of the folder with the target's tokenizer."""
FEATURES = "features.safetensors"
"""Name of the file with the target's embeddings."""
_MAX_SHOWN = 3
"""The most differences between two records that a message names."""
_Arrays = dict[str, NDArray[Any]]


def read_record(path: Path | str) -> Record:
    """Read a record; its arrays are read when its parts are iterated.

    Args:
        path: Its folder, or one that ships, such as `builtin:code`.

    Raises:
        ModelError: No installed collection has this record.
        ConfigError: It is not a record, or damaged.
    """
    shipped = shipped_file(path, "record", HEADER)
    folder = input_path(path) if shipped is None else shipped.parent
    if not folder.is_dir():
        raise ConfigError(
            f"{path}: no such folder; `specdec record --output {path}` writes a record, and "
            "builtin:code is one that ships."
        )
    header = _read_header(folder)
    return Record(folder, header, tuple(_read_part(folder, header, number) for number in range(len(header.parts))))


def damaged(path: Path, reason: str) -> ConfigError:
    """Return the error for a file of a record that cannot be used."""
    return ConfigError(
        f"{path}: this file of a record is damaged: {reason}. Copy the record again, or record it anew with "
        "--fresh."
    )


def _read_header(folder: Path) -> RecordHeader:
    path = folder / HEADER
    with reading(path, ConfigError, "the header of a record"):
        return validated(RecordHeader, path.read_bytes(), str(path))


def _lines_file(folder: Path, number: int) -> Path:
    return folder / f"task-{number}.jsonl"


def _arrays_file(folder: Path, number: int) -> Path:
    return folder / f"task-{number}.safetensors"


def _read_part(folder: Path, header: RecordHeader, number: int) -> RecordPart:
    """Return the texts of a task; of an interrupted recording, those that are whole."""
    path, arrays = _lines_file(folder, number), _arrays_file(folder, number)
    rows = _array_rows(arrays, header) if header.arrays else None
    texts: list[RecordedText] = []
    prompts: dict[int, PromptText] = {}
    tokens = outgrown = 0
    for count, data in enumerate(_whole_lines(path), start=1):
        line = validated(TextLine, data, f"{path}: line {count}")
        tokens += len(line.tokens)
        if rows is not None and tokens > rows:
            break
        if max((*line.prompt, *line.tokens), default=0) >= header.vocab_size:
            raise damaged(path, f"line {count} holds ids beyond the vocabulary")
        if line.number not in range(len(prompts) - 1, len(prompts) + 1):
            raise damaged(path, f"line {count} has the number {line.number}, and numbers ascend without a gap")
        prompts[line.number] = line.prompt_text()
        if line.tokens:
            texts.append(line.text())
        else:
            outgrown += 1
    return RecordPart(
        header.parts[number], tuple(texts), tuple(prompts.values()), outgrown, arrays if rows else None
    )


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file without a last one that was torn; none if there is no file."""
    if not path.exists():
        return []
    with reading(path, ConfigError, "the texts of a record"):
        *lines, torn = path.read_bytes().split(b"\n")
    if torn:
        warnings.warn(f"{path}: the last line is incomplete and left out.", RuntimeWarning, stacklevel=2)
    return lines


def _array_rows(path: Path, header: RecordHeader) -> int:
    """Return the number of tokens that a file has arrays for; 0 if there is no file."""
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in header.arrays}
    except (OSError, SafetensorError) as error:
        raise damaged(path, str(error)) from error
    rows: int = next(iter(shapes.values()))[0]
    if any(shape != [rows, width] for shape, width in zip(shapes.values(), header.arrays.values(), strict=True)):
        raise damaged(path, f"its arrays have the shapes {shapes}, which record.json contradicts")
    return rows


class RecordWriter:
    """A record that is being written: a new one, or an unfinished one with the same header.

    Args:
        path: Folder of the record; created if it does not exist.
        header: The header. T(k) is not part of what must be equal: it is added at the end.
        fresh: Discard the record that is in the folder.

    Raises:
        ConfigError: The folder holds another record, or other things, or cannot be written.

    Attributes:
        path: The folder.
        header: The content of `record.json`.
        stored: Number of lines of each task that are on the disk.
    """

    def __init__(self, path: Path, header: RecordHeader, *, fresh: bool = False) -> None:
        self.path = path
        check_folder(path)
        if fresh:  # whatever else is in the folder stays
            shutil.rmtree(path / TOKENIZER, ignore_errors=True)
            for file in (*path.glob("task-*"), path / FEATURES, path / HEADER):
                file.unlink(missing_ok=True)
        if (path / HEADER).exists():
            there = _read_header(path)
            before, now = (one.model_dump(mode="json", exclude={"times"}) for one in (there, header))
            if differ := differences(before, now):
                raise ConfigError(
                    f"{path} holds another record ({'; '.join(differ[:_MAX_SHOWN])}). Choose another --output, or "
                    "pass --fresh to start over there."
                )
            header = there
        else:
            _write_header(path, header)
        self.header = header
        self.stored = [len(part) + part.outgrown for part in self.record().parts]

    def task(self, number: int, keep: int) -> "TaskWriter":
        """Return a writer of the lines of a task that follow the first `keep`; others are dropped."""
        self.stored[number] = keep
        return TaskWriter(self, number, keep)

    def add_times(self, times: VerifyTimes) -> None:
        """Store T(k), replacing any that is there."""
        self.header = self.header.model_copy(update={"times": times})
        _write_header(self.path, self.header)

    def record(self) -> Record:
        """Return the record as it is on the disk."""
        return read_record(self.path)


class TaskWriter:
    """Appends lines, and the arrays of their texts, to a task of a record.

    Lines are on the disk when `append` returns. A safetensors file cannot grow, so it is written again when as
    many texts wait for it as it holds, and on leaving a `with` block; lines whose arrays are lost are not read.
    """

    def __init__(self, writer: RecordWriter, number: int, keep: int) -> None:
        self._writer, self._number = writer, number
        self._lines = _lines_file(writer.path, number)
        self._file = _arrays_file(writer.path, number)
        self._arrays: _Arrays = {}
        self._saved, self._waiting = 0, list[RecordedText]()
        lines = _whole_lines(self._lines)[:keep]
        with writing_file(self._lines) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))
        if keep and writer.header.arrays:
            counts = [len(json.loads(line).get("tokens", ())) for line in lines]
            self._arrays = {name: array[: sum(counts)] for name, array in load_file(self._file).items()}
            self._saved = len(counts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def append(self, lines: Sequence[TextLine], texts: Sequence[RecordedText] = ()) -> None:
        """Store lines, and the arrays of their texts if the record has any.

        Raises:
            ConfigError: They cannot be written.
        """
        data = "".join(line.model_dump_json(exclude_defaults=True) + "\n" for line in lines)
        try:
            append_to(self._lines, data.encode())
        except OSError as error:
            raise ConfigError(
                f"output {self._lines} cannot be written: {error.strerror}; make room for it."
            ) from error
        self._writer.stored[self._number] += len(lines)
        self._waiting += texts
        if len(self._waiting) >= self._saved:
            self._save()

    def _save(self) -> None:
        if not self._waiting:
            return
        for name in self._writer.header.arrays:
            before = [self._arrays[name]] if name in self._arrays else []
            self._arrays[name] = np.concatenate([*before, *(getattr(text, name) for text in self._waiting)])
        if self._arrays:
            with writing_file(self._file) as temporary:
                save_file(self._arrays, temporary)
        self._saved += len(self._waiting)
        self._waiting = []


def check_folder(path: Path) -> None:
    """Reject a folder with other things in it than a record.

    Raises:
        ConfigError: With what is in the way.
    """
    if path.is_dir() and not (path / HEADER).is_file():
        # A hidden file is the lock, or what a killed process was writing.
        if others := [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]:
            raise ConfigError(
                f"output {path} is a folder with other things in it ({others[0]}), and no record; give another "
                "--output."
            )
    elif path.exists() and not path.is_dir():
        raise ConfigError(f"output {path} is a file, and a record is a folder; give another --output.")


def _write_header(path: Path, header: RecordHeader) -> None:
    write_text_file(path / HEADER, header.model_dump_json(indent=2) + "\n")
