"""The file format of a trained exit: a safetensors file whose header describes it and its target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.interface import ModelError, writing_file
from specdec_drafters.common.weights_file import find_weights, read_weights

FILE_NAME = "early-exit.safetensors"
"""The file in a folder of an exit."""
HOW_TO_TRAIN = f"Train an exit with `specdec train early-exit --target TARGET --output {FILE_NAME}`."
_VERSION = 1
_KEY, _TENSOR = "specdec_early_exit", "translator"


class ExitCard(BaseModel):
    """The metadata of a trained exit.

    Attributes:
        version: Version of the format.
        layers: Number of the target's layers before the exit.
        target: The target's name at training time.
        fingerprint: The target's `TargetFeatures.fingerprint()`.
        facts: Training settings and results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(default=_VERSION, ge=_VERSION, le=_VERSION)
    layers: int = Field(ge=1)
    target: str
    fingerprint: str
    facts: Mapping[str, str | int | float] = {}


def write_exit(path: Path, translator: Tensor, card: ExitCard, dtype: torch.dtype = torch.float16) -> None:
    """Write a trained exit to a file, atomically.

    Args:
        path: The file; an existing one is replaced.
        translator: `[D, D]`, the map of the states before the head.
        card: Its metadata.
        dtype: Data type of the stored weights.

    Raises:
        ConfigError: The file cannot be written.
        ModelError: A weight has no finite value in `dtype`.
    """
    stored = translator.detach().to(dtype).contiguous().cpu()
    _check(stored, "this exit")
    with writing_file(path) as place:
        save_file({_TENSOR: stored}, place, metadata={_KEY: card.model_dump_json()})


def read_exit(path: Path) -> tuple[Tensor, ExitCard]:
    """Read a trained exit.

    Returns:
        Its translator `[D, D]`, in float32 on the CPU, and its metadata.

    Raises:
        ModelError: The file is missing, truncated, not of an exit, or of an unknown version.
    """
    tensors, header = read_weights(path, _KEY, HOW_TO_TRAIN)
    if header is None or set(tensors) != {_TENSOR}:
        raise ModelError(
            f"{path}: a safetensors file, but not of a trained exit ({_KEY!r} in its header, and one tensor "
            f"{_TENSOR!r}). {HOW_TO_TRAIN}"
        )
    try:
        card = ExitCard.model_validate_json(header)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise ModelError(f"{path}: the header is invalid at {where}: {first['msg']}. {HOW_TO_TRAIN}") from error
    translator = tensors[_TENSOR]
    _check(translator, str(path))
    return translator.float(), card


def find_exit(model: str, folder: Path) -> Path:
    """Return the file that a `model` setting refers to.

    Args:
        model: A file, a folder that holds `early-exit.safetensors`, or a name such as `builtin:early-exit`.
        folder: Base for relative paths.

    Raises:
        ModelError: No installed collection has this exit, or the folder has no such file.
    """
    return find_weights(model, folder, FILE_NAME, "exit", HOW_TO_TRAIN)


def _check(translator: Tensor, what: str) -> None:
    square = translator.ndim == 2 and translator.shape[0] == translator.shape[1]
    if not square or not translator.is_floating_point() or not torch.isfinite(translator).all():
        raise ModelError(f"{what}: its translator is not a square matrix of finite values. {HOW_TO_TRAIN}")
