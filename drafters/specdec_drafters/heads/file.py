"""Heads in a file: one safetensors file whose header says what they are and which target they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specdec_core.errors import ModelError
from specdec_core.output import writing_file
from specdec_core.shipped import BUILTIN_PREFIX, builtin_heads
from specdec_drafters.heads.model import Heads, HeadsShape

FILE_NAME = "heads.safetensors"
"""The file that a folder of heads holds."""
VERSION = 1
_KEY = "specdec_heads"


@dataclass(frozen=True)
class HeadsCard:
    """What a file of heads says of itself.

    Attributes:
        shape: The sizes.
        vocab_size: V of the target.
        target: What the target was called when the heads were trained.
        fingerprint: The target's, as `TargetFeatures.fingerprint` gives it.
        facts: How they were trained and what came of it.
    """

    shape: HeadsShape
    vocab_size: int
    target: str
    fingerprint: str
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


class _Header(BaseModel):
    """The header as it is written; whatever does not fit it is no file of heads."""

    model_config = ConfigDict(extra="forbid")

    version: int
    heads: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    width: int = Field(ge=1)
    token_size: int = Field(ge=0)
    vocab_size: int = Field(ge=1)
    target: str
    fingerprint: str
    facts: dict[str, str | int | float] = {}


def write_heads(path: Path, heads: Heads, card: HeadsCard, dtype: torch.dtype = torch.float16) -> None:
    """Write heads to a file, which is whole or not there.

    Args:
        path: The file; what is there is replaced.
        heads: The heads.
        card: What the file shall say of them.
        dtype: What the weights are stored in.

    Raises:
        ConfigError: The file cannot be written.
        ModelError: A weight has no finite value in `dtype`.
    """
    tensors = {name: weight.detach().to(dtype).contiguous().cpu() for name, weight in heads.state_dict().items()}
    _check_finite(tensors, "these heads")
    header = {
        "version": VERSION,
        **_sizes(card.shape),
        "vocab_size": card.vocab_size,
        "target": card.target,
        "fingerprint": card.fingerprint,
        "facts": dict(card.facts),
    }
    with writing_file(path) as place:
        save_file(tensors, place, metadata={_KEY: json.dumps(header)})


def read_heads(path: Path) -> tuple[Heads, HeadsCard]:
    """Read heads from a file.

    Args:
        path: The file.

    Returns:
        The heads in float32 on the CPU, and what the file says of them.

    Raises:
        ModelError: It is missing, cut, no file of heads, or of a version that is not known here.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: there is no such file. {HOW_TO_TRAIN}") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: this is no whole safetensors file ({error}). {HOW_TO_TRAIN}") from error
    card = _card(path, header)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if given != card.shape.tensors:
        raise ModelError(
            f"{path}: the weights are {given}, but the header says {card.shape.tensors}. {HOW_TO_TRAIN}"
        )
    _check_finite(tensors, str(path))
    heads = Heads(card.shape)
    heads.load_state_dict(tensors)
    return heads.eval().requires_grad_(requires_grad=False), card


HOW_TO_TRAIN = "Heads are made by `specdec train heads --target TARGET --output heads.safetensors`."


def find_heads(model: str, folder: Path) -> Path:
    """Return the file that a setting means.

    Args:
        model: A file, a folder that holds `heads.safetensors`, or `builtin:heads`.
        folder: Where a relative path is meant from.

    Raises:
        ModelError: There is no such heads among those that ship, or no such file in the folder.
    """
    if model.startswith(BUILTIN_PREFIX):
        return builtin_heads(model)
    path = folder / Path(model).expanduser()
    if not path.is_dir():
        return path
    if not (path / FILE_NAME).is_file():
        raise ModelError(f"{path}: the folder holds no {FILE_NAME}. {HOW_TO_TRAIN}")
    return path / FILE_NAME


def _card(path: Path, header: str | None) -> HeadsCard:
    if header is None:
        raise ModelError(
            f"{path}: a safetensors file, but not of heads (its header lacks {_KEY!r}). {HOW_TO_TRAIN}"
        )
    try:
        read = _Header.model_validate_json(header)
    except ValidationError as error:
        version = _version(header)
        if version not in (None, VERSION):
            raise ModelError(
                f"{path}: heads of format version {version}; this specdec reads version {VERSION}. "
                "Train them anew, or use the specdec that made them."
            ) from error
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise ModelError(f"{path}: the header of these heads is wrong at {where}: {first['msg']}.") from error
    if read.version != VERSION:
        raise ModelError(
            f"{path}: heads of format version {read.version}; this specdec reads version {VERSION}. "
            "Train them anew, or use the specdec that made them."
        )
    shape = HeadsShape(read.heads, read.hidden_size, read.width, read.token_size)
    return HeadsCard(shape, read.vocab_size, read.target, read.fingerprint, read.facts)


def _version(header: str) -> Any:
    try:
        read = json.loads(header)
    except ValueError:
        return None
    return read.get("version") if isinstance(read, dict) else None


def _sizes(shape: HeadsShape) -> dict[str, int]:
    return {
        "heads": shape.heads,
        "hidden_size": shape.hidden_size,
        "width": shape.width,
        "token_size": shape.token_size,
    }


def _check_finite(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ModelError(f"{what}: the weight {name} holds a value that is no finite number. {HOW_TO_TRAIN}")
