"""One shard of a record: consecutive texts in one safetensors file. Importing this imports no torch.

A file holds the arrays of all its texts, one after the other; `FIELDS` lists them. Its metadata holds a checksum,
so that whatever happens to the bytes is noticed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import writing_file
from specdec_core.record.record import FinishReason, RecordedText, RecordHeader

VERSION = 1
"""Version of the format, `specdec_record` in the header and in each shard."""

FIELDS = {
    "numbers": "the number of the prompt of each text",
    "samples": "the number of each text of its prompt",
    "lengths": "the number of tokens of each text",
    "finish": "why each text ended: its place in eos, stop, length, context",
    "prompts": "the token ids of the prompts, one after the other; a prompt of several texts is there once",
    "prompt_lengths": "the number of tokens of each prompt",
    "tokens": "the token ids of the texts, one after the other",
    "probabilities": "p of each token; absent where decoding is greedy",
    "hidden": "the hidden state that each token was predicted from",
    "top_tokens": "the most probable tokens at each position",
    "top_probabilities": "their p",
}
"""The arrays of a shard."""

_METADATA = "record"
"""Key of the metadata of a shard: a JSON object with what `ShardInfo` holds, and the version."""
_REASONS = get_args(FinishReason)
_LARGEST_UINT16 = 2**16
_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ShardInfo:
    """What the metadata of a shard says.

    Attributes:
        path: The file.
        first: Number of its first text in the part.
        texts: Number of its texts.
        tokens: Number of their tokens.
        crc32: Checksum of the arrays.
    """

    path: Path
    first: int
    texts: int
    tokens: int
    crc32: int


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.safetensors"


def write_shard(path: Path, texts: Sequence[RecordedText], first: int, *, vocab_size: int, greedy: bool) -> None:
    """Write a shard: after this it is on the disk whole, or not at all.

    Args:
        path: The file.
        texts: Consecutive texts of a part, by prompt and sample.
        first: Number of the first of them in the part.
        vocab_size: V; ids take two bytes each if it is at most 65,536, else four.
        greedy: Whether every probability is 1, and none is stored.

    Raises:
        ConfigError: The file cannot be written.
    """
    arrays = _arrays(texts, np.dtype(np.uint16 if vocab_size <= _LARGEST_UINT16 else np.int32), greedy)
    about = {
        "specdec_record": VERSION,
        "first": first,
        "texts": len(texts),
        "tokens": len(arrays["tokens"]),
        "crc32": checksum(arrays),
    }
    # One value: safetensors writes several in a random order, and equal shards are equal files.
    data = save(arrays, {_METADATA: json.dumps(about)})
    with writing_file(path) as place, place.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_info(path: Path) -> ShardInfo:
    """Return what the metadata of a shard says; its texts are not read.

    Raises:
        ConfigError: The file cannot be read, is damaged, or has another version.
    """
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {})[_METADATA])
        if (version := about.get("specdec_record")) != VERSION:
            raise ConfigError(_other_version(path, version))
        return ShardInfo(path, *(int(about[name]) for name in ("first", "texts", "tokens", "crc32")))
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise damaged(path, str(error)) from error


def read_shard(info: ShardInfo, header: RecordHeader) -> Iterator[RecordedText]:
    """Yield the texts of a shard.

    Args:
        info: The shard.
        header: Of the record.

    Raises:
        ConfigError: The file is damaged, or holds what no target can have said.
    """
    try:
        with safe_open(info.path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(info.path, str(error)) from error
    if checksum(arrays) != info.crc32:
        raise damaged(info.path, "its checksum is another one")
    if problem := _problem(arrays, info, header):
        raise damaged(info.path, problem)
    return _texts(arrays)


def damaged(path: Path, reason: str) -> ConfigError:
    """Return the error for a file of a record that cannot be used."""
    return ConfigError(
        f"{path}: this file of a record is damaged: {reason}. Copy the record again, or record it anew with "
        "--fresh."
    )


def _other_version(path: Path, version: object) -> str:
    return (
        f"{path}: this is version {version!r} of the format of records, and this version of specdec reads "
        f"{VERSION}; install the version of specdec that wrote it, or record it anew with --fresh."
    )


def _arrays(texts: Sequence[RecordedText], ids: np.dtype[Any], greedy: bool) -> _Arrays:
    """Return the arrays of some texts, concatenated."""
    prompts = [next(same).prompt for _, same in groupby(texts, key=lambda text: text.number)]
    arrays: _Arrays = {
        "numbers": np.array([text.number for text in texts], np.int32),
        "samples": np.array([text.sample for text in texts], np.int32),
        "lengths": np.array([len(text.tokens) for text in texts], np.int32),
        "finish": np.array([_REASONS.index(text.finish_reason) for text in texts], np.uint8),
        "prompts": np.concatenate([np.array(prompt, ids) for prompt in prompts]),
        "prompt_lengths": np.array(list(map(len, prompts)), np.int32),
        "tokens": np.concatenate([text.tokens for text in texts]).astype(ids),
    }
    if not greedy:
        arrays["probabilities"] = np.concatenate([text.probabilities for text in texts]).astype(np.float32)
    if texts[0].hidden is not None:
        arrays["hidden"] = _joined([text.hidden for text in texts])
    if texts[0].top_tokens is not None:
        arrays["top_tokens"] = _joined([text.top_tokens for text in texts]).astype(ids)
        arrays["top_probabilities"] = _joined([text.top_probabilities for text in texts]).astype(np.float32)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _joined(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    return np.concatenate([part for part in parts if part is not None])


def checksum(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the CRC-32 of arrays: of `NAME DTYPE SHAPE` in UTF-8 and the bytes of each, by name."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


def _problem(arrays: Mapping[str, NDArray[Any]], info: ShardInfo, header: RecordHeader) -> str | None:
    """Return what is wrong with arrays that were read; None if nothing is."""
    missing = {"numbers", "samples", "lengths", "finish", "prompts", "prompt_lengths", "tokens"} - set(arrays)
    if missing:
        return f"it has no {', '.join(sorted(missing))}"
    total, sizes = len(arrays["tokens"]), {"hidden": header.hidden_size}
    sizes |= dict.fromkeys(("top_tokens", "top_probabilities"), header.top_k or None)
    for name, width in sizes.items():
        expected = None if width is None else (total, width)
        found = arrays[name].shape if name in arrays else None
        if found != expected:
            return f"{name} has the shape {found}, and its header says {expected}"
    counts = [len(arrays[name]) for name in ("numbers", "samples", "lengths", "finish")]
    if set(counts) != {info.texts} or int(arrays["lengths"].sum()) != total or total != info.tokens:
        return "the numbers of texts and tokens contradict each other"
    prompts = 1 + sum(one != other for one, other in pairwise(arrays["numbers"].tolist())) if info.texts else 0
    if len(arrays["prompt_lengths"]) != prompts or arrays["prompt_lengths"].sum() != len(arrays["prompts"]):
        return "the numbers of prompts contradict each other"
    if int(arrays["lengths"].min(initial=1)) < 1 or int(arrays["finish"].max(initial=0)) >= len(_REASONS):
        return "a text has no tokens, or an unknown finish reason"
    for name in ("prompts", "tokens", "top_tokens"):
        ids = arrays.get(name, np.zeros(0, np.int32))
        if int(ids.max(initial=0)) >= header.vocab_size or int(ids.min(initial=0)) < 0:
            return f"{name} holds an id outside of the vocabulary of {header.vocab_size}"
    p = arrays.get("probabilities", np.ones(total, np.float32))
    if len(p) != total or not bool(((p > 0) & (p <= 1)).all()):
        return "probabilities must be one for each token, above 0 and at most 1"
    return None


def _texts(arrays: Mapping[str, NDArray[Any]]) -> Iterator[RecordedText]:
    numbers = arrays["numbers"].tolist()
    ends = np.cumsum(arrays["lengths"], dtype=np.int64).tolist()
    prompt_ends = np.cumsum(arrays["prompt_lengths"], dtype=np.int64).tolist()
    tokens = arrays["tokens"].astype(np.int64)
    total = len(tokens)
    probabilities = arrays.get("probabilities", np.ones(total, np.float32))
    top = arrays.get("top_tokens")
    place, prompt = -1, ()
    for index, (number, end) in enumerate(zip(numbers, ends, strict=True)):
        if not index or numbers[index - 1] != number:
            place += 1
            begin = prompt_ends[place - 1] if place else 0
            prompt = tuple(arrays["prompts"][begin : prompt_ends[place]].tolist())
        span = slice(ends[index - 1] if index else 0, end)
        yield RecordedText(
            prompt=prompt,
            number=number,
            sample=int(arrays["samples"][index]),
            tokens=tokens[span],
            probabilities=probabilities[span],
            finish_reason=_REASONS[int(arrays["finish"][index])],
            hidden=arrays["hidden"][span] if "hidden" in arrays else None,
            top_tokens=None if top is None else top[span].astype(np.int64),
            top_probabilities=None if top is None else arrays["top_probabilities"][span],
        )
