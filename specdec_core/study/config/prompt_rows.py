"""Rows from files and datasets: JSON lines, JSON, CSV, parquet, text, Hugging Face datasets."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specdec_core.interface.errors import PromptError, reading, shortened
from specdec_core.interface.files import input_path, open_text

if TYPE_CHECKING:
    from specdec_core.study.config.schema import PromptsConfig

INSTALL = "pip install 'specdec-core[datasets]'"
_MAX_FIELD = 2**31 - 1
"""The most characters of a value in a table: the most that the module csv takes on every system."""


@dataclass(frozen=True)
class Row:
    """One row of a file or dataset, not checked yet.

    Attributes:
        where: Its location in messages, such as `prompts.jsonl:3`.
        number: Line or row number, from 1.
        values: Its values by column, or by key of a JSON object.
        problem: Why it could not be read, to be put after `where`.
        table: Whether all rows have the same columns.
    """

    where: str
    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    table: bool = False


def file_rows(path: Path) -> Iterator[Row]:
    """Return the rows of a file, in the format that its suffix names. Blank lines are skipped.

    Args:
        path: The file.

    Raises:
        PromptError: It cannot be read, or its suffix is unknown.
    """
    if not is_readable(path):
        raise PromptError(f"{path}: its name does not tell the format. Give a file ending in {_LISTED}.")
    return _READERS[_suffix(path)](path)


def is_readable(path: Path) -> bool:
    """Return whether the name of a file tells a format that `file_rows` reads."""
    return _suffix(path) in _READERS


def _suffix(path: Path) -> str:
    """Return the suffix of a file that names its format, which stands before that of gzip."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def dataset_rows(config: PromptsConfig, folder: Path) -> Iterator[Row]:
    """Yield the rows of a Hugging Face dataset.

    Args:
        config: Settings of the prompts, with `dataset`.
        folder: Base for relative paths.

    Raises:
        PromptError: The package is missing, or the dataset, its configuration or its split cannot be read.
    """
    try:
        import datasets
    except ImportError as error:
        raise PromptError(f"`dataset` needs the package datasets, which cannot be imported: {INSTALL}.") from error
    name = str(config.dataset)
    path = input_path(name, folder, PromptError)
    if not path.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise PromptError(f"{name}: no such folder ({path}). Give a folder, or a dataset of the hub.")
    source = str(path.resolve()) if path.is_dir() else name
    with _without_progress_bars(datasets):
        try:
            found = datasets.load_dataset(source, config.config, split=config.split, revision=config.revision)
        except Exception as error:  # many kinds, of several libraries
            reason = " ".join(str(error).split()) or type(error).__name__
            advice = "" if path.is_dir() else " Check the name and the network (HF_HUB_OFFLINE?)."
            raise PromptError(f"{name}: this dataset cannot be loaded: {reason}{advice}") from error
    if isinstance(found, dict):
        if len(found) > 1:
            raise PromptError(f"{name}: set `split` to one of its splits: {', '.join(map(str, found))}.")
        found = next(iter(found.values()))
    for index in shuffled(len(found), config.shuffle):
        yield Row(f"{name} ({found.split}): row {index + 1}", index + 1, found[index], table=True)


def shuffled(count: int, seed: int | None) -> Sequence[int]:
    """Return the numbers below `count` in a random order, or in their own without a seed."""
    if seed is None:
        return range(count)
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@contextmanager
def _without_progress_bars(datasets: Any) -> Iterator[None]:
    shown = datasets.utils.are_progress_bars_disabled() is False
    datasets.utils.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.utils.enable_progress_bars()


def _json_lines(path: Path) -> Iterator[Row]:
    with reading(path, PromptError, "JSON, one object per line"), open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_row(f"{path}:{number}", number, line)


def _json_row(where: str, number: int, line: str) -> Row:
    try:
        entry = json.loads(line.rstrip())  # without the newline, errors at the end have the right column
    except json.JSONDecodeError as error:
        problem = f":{error.colno}: invalid JSON: {error.msg}; expected one object per line."
    else:
        return _object_row(where, number, entry)
    return Row(where, number, problem=problem)


def _object_row(where: str, number: int, entry: Any) -> Row:
    if isinstance(entry, dict):
        return Row(where, number, entry)
    return Row(where, number, problem=f": expected an object; given {shortened(repr(entry), 60)}.")


def _json_list(path: Path) -> Iterator[Row]:
    with reading(path, PromptError, "a JSON list of objects"), open_text(path) as file:
        text = file.read()
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        hint = " If it has one object per line, name it .jsonl." if error.msg == "Extra data" else ""
        raise PromptError(f"{path}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}.{hint}") from error
    if not isinstance(entries, list):
        raise PromptError(f"{path}: expected a list of objects; given {shortened(repr(entries), 60)}.")
    for number, entry in enumerate(entries, start=1):
        yield _object_row(f"{path}: entry {number}", number, entry)


def _separated(separator: str, quoting: Literal[0, 3], advice: str = "") -> Callable[[Path], Iterator[Row]]:
    def rows(path: Path) -> Iterator[Row]:
        csv.field_size_limit(_MAX_FIELD)
        with reading(path, PromptError, "a table with a header"), open_text(path, newline="") as file:
            reader = csv.reader(file, delimiter=separator, quoting=quoting, strict=True)
            try:
                header = next(reader, [])
                if len(set(header)) < len(header):
                    raise PromptError(f"{path}:1: two columns have the same name: {', '.join(header)}.")
                begun = reader.line_num + 1
                for values in reader:
                    if values:
                        yield _table_row(path, begun, header, values, advice)
                    begun = reader.line_num + 1
            except csv.Error as error:
                raise PromptError(f"{path}:{reader.line_num}: this is not a table: {error}.") from error

    return rows


def _table_row(path: Path, number: int, header: Sequence[str], values: Sequence[str], advice: str) -> Row:
    problem = None
    if len(values) != len(header):
        problem = f": this row has {len(values)} values, the header has {len(header)}{advice}."
    return Row(f"{path}:{number}", number, dict(zip(header, values, strict=False)), problem, table=True)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise PromptError(f"{path}: parquet needs pyarrow, which cannot be imported: {INSTALL}.") from error
    number = 0
    with reading(path, PromptError, "parquet"):
        try:
            with parquet.ParquetFile(path) as table:
                for batch in table.iter_batches():
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(f"{path}: row {number}", number, values, table=True)
        except pyarrow.ArrowInvalid as error:
            raise PromptError(f"{path}: this is not a parquet file: {str(error).splitlines()[0]}") from error


def _text_lines(path: Path) -> Iterator[Row]:
    with reading(path, PromptError, "text, one prompt per line"), open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Row(f"{path}:{number}", number, {"prompt": line.rstrip("\n")}, table=True)


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".csv": _separated(",", csv.QUOTE_MINIMAL, "; quote values with commas"),
    ".tsv": _separated("\t", csv.QUOTE_NONE),
    ".parquet": _parquet,
    ".txt": _text_lines,
}
"""Readers by the suffix of the file."""

_LISTED = " or ".join([", ".join([*_READERS][:-1]), [*_READERS][-1]]) + ", or one of these and .gz"
