"""The file format of heads."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field

from specdec_core.interface import ModelError
from specdec_drafters.common.weights_file import WeightsCard, WeightsFormat
from specdec_drafters.heads.model import Heads, HeadsShape


class HeadsCard(WeightsCard):
    """The header of a file of heads: also the sizes of `HeadsShape`.

    Attributes:
        vocab_size: V of the target.
    """

    heads: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    width: int = Field(ge=1)
    token_size: int = Field(ge=0)
    vocab_size: int = Field(ge=1)

    @property
    def shape(self) -> HeadsShape:
        """The sizes."""
        return HeadsShape(self.heads, self.hidden_size, self.width, self.token_size)


HEADS_FILE = WeightsFormat(
    what="heads",
    name="heads.safetensors",
    key="specdec_heads",
    card=HeadsCard,
    how_to_train="Train heads with `specdec train heads --target TARGET --output heads.safetensors`.",
)


def write_heads(path: Path, heads: Heads, card: HeadsCard, dtype: torch.dtype = torch.float16) -> None:
    """Write heads to a file; see `WeightsFormat.write`."""
    HEADS_FILE.write(path, heads.state_dict(), card, dtype)


def read_heads(path: Path) -> tuple[Heads, HeadsCard]:
    """Read heads from a file.

    Returns:
        The heads in float32 on the CPU, and their header.

    Raises:
        ModelError: The file is missing, truncated, not a file of heads, or of an unknown version.
    """
    tensors, card = HEADS_FILE.read(path)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if given != card.shape.tensors:
        raise ModelError(
            f"{path}: the weights are {given}, but the header says {card.shape.tensors}. {HEADS_FILE.how_to_train}"
        )
    heads = Heads(card.shape)
    heads.load_state_dict(tensors)
    return heads.eval().requires_grad_(requires_grad=False), card
