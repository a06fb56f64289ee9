"""The file format of a trained exit."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from specdec_core.interface import ModelError
from specdec_drafters.common.weights_file import WeightsCard, WeightsFormat

_TENSOR = "translator"


class ExitCard(WeightsCard):
    """The header of a file of a trained exit.

    Attributes:
        layers: Number of the target's layers before the exit.
    """

    layers: int = Field(ge=1)


EXIT_FILE = WeightsFormat(
    what="exit",
    name="early-exit.safetensors",
    key="specdec_early_exit",
    card=ExitCard,
    how_to_train="Train an exit with `specdec train early-exit --target TARGET --output early-exit.safetensors`.",
)


def write_exit(path: Path, translator: Tensor, card: ExitCard, dtype: torch.dtype = torch.float16) -> None:
    """Write a trained exit, the map `[D, D]` of the states before the head; see `WeightsFormat.write`."""
    EXIT_FILE.write(path, {_TENSOR: translator}, card, dtype)


def read_exit(path: Path) -> tuple[Tensor, ExitCard]:
    """Read a trained exit.

    Returns:
        Its translator `[D, D]`, in float32 on the CPU, and its header.

    Raises:
        ModelError: The file is missing, truncated, not of an exit, or of an unknown version.
    """
    tensors, card = EXIT_FILE.read(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes.keys() != {_TENSOR} or len(shapes[_TENSOR]) != 2 or len(set(shapes[_TENSOR])) != 1:
        raise ModelError(
            f"{path}: the weights are {shapes}; expected one square matrix, {_TENSOR}. {EXIT_FILE.how_to_train}"
        )
    return tensors[_TENSOR].float(), card
