"""A loaded model, with what the framework needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specdec_core.border import TargetInfo
from specdec_core.models.family import Family
from specdec_core.models.features import ModelFeatures


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, with what the framework needs to know of it.

    Attributes:
        model: The Hugging Face model. Nothing of it stays changed, but a forward may change it while it runs: one
            thread at a time.
        tokenizer: Its tokenizer, or None where the folder has none.
        name: What the user called it.
        family: What its cache and its forward allow.
        vocab_size: V, the number of logits.
        eos_ids: Ids that end a sequence.
        start_id: The decoder's first token for encoder-decoder models, else None.
        features: What drafters may see of its weights; None where it has no output embedding.
    """

    model: Any
    tokenizer: Any
    name: str
    family: Family
    vocab_size: int
    eos_ids: tuple[int, ...]
    start_id: int | None
    features: ModelFeatures | None = None

    @property
    def device(self) -> torch.device:
        """Where its first weights lie; inputs go there."""
        device: torch.device = self.model.device
        return device

    @property
    def max_positions(self) -> int | None:
        """The most tokens it takes, or None where there is no bound."""
        return self.family.max_positions

    @property
    def encoder_decoder(self) -> bool:
        """Whether it reads a source with an encoder."""
        return self.family.encoder_decoder

    def row_by_row(self) -> LoadedModel:
        """Return it as one whose forward knows only one position: rows that stand apart take a forward each."""
        return replace(self, family=replace(self.family, ragged=False))

    def info(self, folder: Path = Path()) -> TargetInfo:
        """Return what drafters may know of this model as a target.

        Args:
            folder: Where relative paths in plugin settings are meant from.
        """
        return TargetInfo(
            vocab_size=self.vocab_size,
            eos_ids=self.eos_ids,
            device=self.device,
            tokenizer=self.tokenizer,
            encoder_decoder=self.encoder_decoder,
            folder=folder,
            features=self.features,
        )
