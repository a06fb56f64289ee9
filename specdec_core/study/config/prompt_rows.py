"""Rows from files and datasets: JSON lines, JSON, CSV, parquet, text, Hugging Face datasets; and their prompts.

The prompt of a row has specdec's keys or Spec-Bench's, or is in named columns or a template.
"""

import csv
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

from specdec_core.interface.errors import PromptError, reading, shortened, unknown_name
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


def dataset_rows(config: "PromptsConfig", folder: Path) -> Iterator[Row]:
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
        return Row(where, number, problem=problem)
    return _object_row(where, number, entry)


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


@dataclass(frozen=True)
class Columns:
    """The columns to read of each row. With neither, rows have specdec's keys, Spec-Bench's or ShareGPT's.

    Attributes:
        names: Columns by what they hold: `prompt`, `messages`, `reference`, `id` or `source`.
        template: Makes the prompt: a text with columns in braces.
        group: Columns whose values together name the group of a prompt.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    group: Sequence[str] = ()

    def pick(self, row: Row) -> Mapping[str, Any] | None:
        """Return a row's values under specdec's keys; None for a conversation of ShareGPT in which no user speaks.

        Raises:
            PromptError: The row lacks a column, or its prompt is not a text.
        """
        picked = self._picked(row)
        talk = picked.get("messages")
        if not isinstance(talk, list) or not all(isinstance(one, Mapping) and "value" in one for one in talk):
            return picked
        if not talk and "conversations" not in row.values:
            return picked
        messages = _asked(talk)
        return {**picked, "messages": messages} if messages else None

    def _picked(self, row: Row) -> Mapping[str, Any]:
        if not self.names and self.template is None:
            return _own_keys(row)
        picked = {key: _value(row, column) for key, column in self.names.items()}
        if self.template is not None:
            picked["prompt"] = _filled(self.template, row)
        elif "prompt" in picked:
            picked |= _said(picked.pop("prompt"), self.names["prompt"])
        return picked

    def group_of(self, row: Row) -> tuple[str, ...]:
        """Return the values of a row that name its group: one for each column of `group`.

        Raises:
            PromptError: The row lacks a column, or its value is not a text, a number or null.
        """
        return tuple(group_name(_value(row, column), column) for column in self.group)


NO_VALUE = "(none)"
"""The group of prompts whose value is null or an empty text."""


def group_name(value: Any, column: str) -> str:
    """Return a value as the name of a group.

    Raises:
        PromptError: It is not a text, a number or null.
    """
    if value is None or value == "":
        return NO_VALUE
    if not isinstance(value, (str, int, float)):
        raise PromptError(
            f"column {column!r} groups the prompts, so it must hold a text or a number; given {_given(value)}."
        )
    return str(value)


def check_template(template: str) -> str:
    """Return a template.

    Raises:
        ValueError: It is not a text with the names of columns in braces.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write a brace that is not a column as two: {{{{ or }}}}") from error
    names = [name for _, name, _, _ in parts if name is not None]
    # A format or a conversion would be code of a kind, and so would attributes.
    if not names or any(not name or form or conversion for _, name, form, conversion in parts if name is not None):
        raise ValueError("write columns in braces, such as 'Question: {question}'; nothing else may be in them")
    return template


def _filled(template: str, row: Row) -> str:
    pieces = []
    for literal, column, _, _ in Formatter().parse(template):
        pieces.append(literal)
        if column is not None:
            value = _value(row, column)
            pieces.append(str(value) if isinstance(value, (int, float)) else _text(value, column))
    return "".join(pieces)


def _value(row: Row, column: str) -> Any:
    """Return the value of a column; a dot in its name reaches into objects and lists."""
    if column in row.values:
        return row.values[column]
    node: Any = row.values
    before = ""
    for part in column.split("."):
        inside = _inside(node)
        if part not in inside:
            names = [before + key for key in inside] or row.values
            raise PromptError(unknown_name("column", column, names))
        node = inside[part]
        before += f"{part}."
    return node


def _inside(node: Any) -> Mapping[str, Any]:
    """Return the parts of an object or a list by the names that they have in a column's."""
    if isinstance(node, list):
        return {str(index): value for index, value in enumerate(node)}
    return node if isinstance(node, Mapping) else {}


def _text(value: Any, column: str) -> str:
    """Return a text, or the first of several: the first turn of a dialogue."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, str):
        raise PromptError(f"column {column!r} must hold a text; given {_given(value)}.")
    return first


def _said(value: Any, column: str) -> dict[str, Any]:
    """Return a text as a prompt, and several as the turns of a user."""
    if not isinstance(value, list):
        return {"prompt": _text(value, column)}
    if not value or not all(isinstance(text, str) for text in value):
        wrong = next((text for text in value if not isinstance(text, str)), value)
        raise PromptError(f"column {column!r} must hold texts, the turns of a user; given {_given(wrong)}.")
    return {"messages": [{"role": "user", "content": text} for text in value]}


def _given(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str), 60)


_QUESTION = {"said": "turns", "id": "question_id", "source": "category"}
"""Keys of a question of SPEED-Bench, Spec-Bench or MT-Bench."""
_HUB_QUESTION = {"said": "prompt", "id": "prompt_id", "source": "category"}
"""Keys of a question of MT-Bench as it is on the hub."""
_SPEAKERS = {"human": "user", "user": "user", "system": "system"}
"""Roles of those who speak to the model in ShareGPT."""
_MODELS = ("gpt", "chatgpt", "bing", "bard", "assistant")
"""Names of the model in ShareGPT."""


def _asked(talk: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is said to the model in a conversation of ShareGPT; empty if no user speaks.

    Raises:
        PromptError: Someone else speaks, such as a tool.
    """
    said = []
    for one in talk:
        speaker = str(one.get("from"))
        if speaker in _SPEAKERS and str(one["value"]).strip():
            said.append({"role": _SPEAKERS[speaker], "content": one["value"]})
        elif speaker not in _SPEAKERS and speaker not in _MODELS:
            raise PromptError(unknown_name("speaker", speaker, (*_SPEAKERS, *_MODELS)))
    return said if any(message["role"] == "user" for message in said) else []


def _own_keys(row: Row) -> Mapping[str, Any]:
    """Return a row with specdec's keys as it is, and a question of a benchmark as the turns of a user.

    Its references are those of all turns.
    """
    values = row.values
    if isinstance(values.get("prompt"), list):
        question = _HUB_QUESTION
    elif {"prompt", "messages"} & set(values):
        return values
    elif "turns" in values:
        question = _QUESTION
    elif "conversations" in values:
        return {"messages": values["conversations"], "source": values.get("id")}
    elif row.table:
        columns = ", ".join(map(repr, values))
        raise PromptError(
            f"the rows have no column 'prompt'. Name the one that holds it with `column`: {columns}."
        )
    else:
        return values
    picked = {key: values[name] for key, name in question.items() if name in values}
    turns = picked.pop("said")
    return {**picked, **_said(turns if isinstance(turns, list) else [turns], question["said"])}
