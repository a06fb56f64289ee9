"""The file format of heads: a safetensors file whose header describes them and their target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file

from specdec_core.interface import ModelError, writing_file
from specdec_drafters.common.weights_file import find_weights, read_weights
from specdec_drafters.heads.model import Heads, HeadsShape

FILE_NAME = "heads.safetensors"
"""The file in a folder of heads."""
VERSION = 1
_KEY = "specdec_heads"


@dataclass(frozen=True)
class HeadsCard:
    """The metadata of a file of heads.

    Attributes:
        shape: The sizes.
        vocab_size: V of the target.
        target: The target's name at training time.
        fingerprint: The target's `TargetFeatures.fingerprint()`.
        facts: Training settings and results.
    """

    shape: HeadsShape
    vocab_size: int
    target: str
    fingerprint: str
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


class _Header(BaseModel):
    """The schema of the header."""

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
    """Write heads to a file, atomically.

    Args:
        path: The file; an existing one is replaced.
        heads: The heads.
        card: Their metadata.
        dtype: Data type of the stored weights.

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
        The heads in float32 on the CPU, and their metadata.

    Raises:
        ModelError: The file is missing, truncated, not a file of heads, or of an unknown version.
    """
    tensors, header = read_weights(path, _KEY, HOW_TO_TRAIN)
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


HOW_TO_TRAIN = "Train heads with `specdec train heads --target TARGET --output heads.safetensors`."


def find_heads(model: str, folder: Path) -> Path:
    """Return the file that a `model` setting refers to.

    Args:
        model: A file, a folder that holds `heads.safetensors`, or a name such as `builtin:heads`.
        folder: Base for relative paths.

    Raises:
        ModelError: No installed collection has these heads, or the folder has no such file.
    """
    return find_weights(model, folder, FILE_NAME, "heads", HOW_TO_TRAIN)


def _card(path: Path, header: str | None) -> HeadsCard:
    if header is None:
        raise ModelError(
            f"{path}: a safetensors file, but not of heads (no {_KEY!r} in its header). {HOW_TO_TRAIN}"
        )
    try:
        read = _Header.model_validate_json(header)
    except ValidationError as error:
        version = _version(header)
        if version not in (None, VERSION):
            raise ModelError(
                f"{path}: heads of format version {version}; this specdec reads version {VERSION}. "
                "Train them again, or use the specdec that made them."
            ) from error
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise ModelError(f"{path}: the header is invalid at {where}: {first['msg']}.") from error
    if read.version != VERSION:
        raise ModelError(
            f"{path}: heads of format version {read.version}; this specdec reads version {VERSION}. "
            "Train them again, or use the specdec that made them."
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
            raise ModelError(f"{what}: the weight {name} has values that are not finite. {HOW_TO_TRAIN}")
