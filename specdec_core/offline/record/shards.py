"""One shard of a record: consecutive texts in one safetensors file. Importing this imports no torch.

A file holds the arrays of all its texts, one after the other (see `specdec_core.offline.record.shard_fields`).
Its metadata holds a checksum, so that whatever happens to the bytes is noticed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors.numpy import save

from specdec_core.interface.files import writing_file
from specdec_core.offline.record.file_errors import VERSION, damaged, open_arrays, validated
from specdec_core.offline.record.format import PartHeader, RecordedText, RecordHeader
from specdec_core.offline.record.shard_fields import REASONS, Arrays, fields_of, layout_problem, value_problem

_METADATA = "record"
"""Key of the metadata of a shard, a JSON object."""
_TYPES = {"U8": "uint8", "U16": "uint16", "I32": "int32", "F16": "float16", "F32": "float32"}
"""Number formats of a record, by their names in safetensors."""


class _Metadata(BaseModel):
    """The content of a shard's metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    specdec_record: Literal[1]
    first: Annotated[int, Field(ge=0)]
    texts: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    crc32: Annotated[int, Field(ge=0, lt=2**32)]
    outgrown: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class ShardInfo:
    """The metadata of a shard, read.

    Attributes:
        path: The file.
        first: Number of its first text in the part, turns that outgrew the context included.
        texts: Number of its texts.
        tokens: Number of their tokens.
        crc32: Checksum of the arrays.
        outgrown: Number of turns that were not decoded, as their conversations had outgrown the context.
    """

    path: Path
    first: int
    texts: int
    tokens: int
    crc32: int
    outgrown: int = 0


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.safetensors"


def write_shard(
    path: Path,
    texts: Sequence[RecordedText],
    first: int,
    header: RecordHeader,
    part: PartHeader,
    outgrown: int = 0,
) -> None:
    """Write a shard: after this it is on the disk whole, or not at all.

    Args:
        path: The file.
        texts: Consecutive texts of a part, by prompt and sample.
        first: Number of the first of them in the part.
        header: Header of the record.
        part: Settings of the part.
        outgrown: Number of turns among them that were not decoded.

    Raises:
        ConfigError: The file cannot be written.
    """
    arrays = _arrays(texts, header, part)
    about = _Metadata(
        specdec_record=VERSION,
        first=first,
        texts=len(texts),
        tokens=len(arrays["tokens"]),
        crc32=checksum(arrays),
        outgrown=outgrown,
    )
    # One value: safetensors writes several in a random order, and equal shards are equal files.
    data = save(dict(arrays), {_METADATA: json.dumps(about.model_dump(exclude_defaults=True))})
    with writing_file(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_info(path: Path, header: RecordHeader, part: PartHeader) -> ShardInfo:
    """Return the metadata of a shard; its arrays are not read.

    Args:
        path: The file.
        header: Header of the record.
        part: Settings of the part.

    Raises:
        ConfigError: The file cannot be read, is damaged, has another version, or arrays of another layout.
    """
    with open_arrays(path, "np") as file:
        metadata = (file.metadata() or {}).get(_METADATA)
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        layout = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    if metadata is None:
        raise damaged(path, f"its metadata has no {_METADATA!r}")
    about = validated(_Metadata, metadata, path)
    found = {name: (_TYPES.get(kind, kind), shape) for name, (kind, shape) in layout.items()}
    fields = fields_of(header, greedy=part.sampling.greedy)
    if problem := layout_problem(found, about.texts, about.tokens, header, fields):
        raise damaged(path, problem)
    return ShardInfo(path, about.first, about.texts, about.tokens, about.crc32, about.outgrown)


def read_shard(info: ShardInfo, header: RecordHeader, part: PartHeader) -> Iterator[RecordedText]:
    """Yield the texts of a shard.

    Args:
        info: The shard.
        header: Header of the record.
        part: Settings of the part.

    Raises:
        ConfigError: The file is damaged, or holds what no target can have said.
    """
    fields = fields_of(header, greedy=part.sampling.greedy)
    with open_arrays(info.path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in fields}
    if checksum(arrays) != info.crc32:
        raise damaged(info.path, "its checksum is another one")
    if problem := value_problem(arrays, header, fields):
        raise damaged(info.path, problem)
    return _texts(arrays)


def _arrays(texts: Sequence[RecordedText], header: RecordHeader, part: PartHeader) -> Arrays:
    """Return the arrays of some texts, concatenated."""
    prompts = [next(same).prompt for _, same in groupby(texts, key=lambda text: text.number)]
    values: dict[str, Any] = {
        "numbers": [text.number for text in texts],
        "samples": [text.sample for text in texts],
        "lengths": [len(text.tokens) for text in texts],
        "finish": [REASONS.index(text.finish_reason) for text in texts],
        "prompts": [token for prompt in prompts for token in prompt],
        "prompt_lengths": list(map(len, prompts)),
    }
    arrays = {}
    for name, field in fields_of(header, greedy=part.sampling.greedy).items():
        array = np.asarray(values[name] if name in values else _joined(texts, name))
        types = field.types_for(header.vocab_size)
        kept = array.dtype.name if array.dtype.name in types else types[0]
        arrays[name] = np.ascontiguousarray(array, kept)
    return arrays


def _joined(texts: Sequence[RecordedText], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(text, name) for text in texts])


def checksum(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the CRC-32 of arrays: of `NAME DTYPE SHAPE` in UTF-8 and the bytes of each, by name."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


def _texts(arrays: Arrays) -> Iterator[RecordedText]:
    numbers = arrays["numbers"].tolist()
    ends = np.cumsum(arrays["lengths"], dtype=np.int64).tolist()
    prompt_ends = np.cumsum(arrays["prompt_lengths"], dtype=np.int64).tolist()
    tokens = arrays["tokens"].astype(np.int64)
    total = len(tokens)
    probabilities = arrays.get("probabilities", np.ones(total, np.float32))
    top = arrays.get("top_tokens")
    prompt_index, prompt = -1, ()
    for index, (number, end) in enumerate(zip(numbers, ends, strict=True)):
        if not index or numbers[index - 1] != number:
            prompt_index += 1
            begin = prompt_ends[prompt_index - 1] if prompt_index else 0
            prompt = tuple(arrays["prompts"][begin : prompt_ends[prompt_index]].tolist())
        span = slice(ends[index - 1] if index else 0, end)
        yield RecordedText(
            prompt=prompt,
            number=number,
            sample=int(arrays["samples"][index]),
            tokens=tokens[span],
            probabilities=probabilities[span],
            finish_reason=REASONS[int(arrays["finish"][index])],
            hidden=arrays["hidden"][span] if "hidden" in arrays else None,
            top_tokens=None if top is None else top[span].astype(np.int64),
            top_probabilities=None if top is None else arrays["top_probabilities"][span],
        )
