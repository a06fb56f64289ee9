"""Beams of a recurrent model: each is a row, since a state follows one path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_core.decoding.beams.prompt_beams import PromptBeams
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.device import inference_only


class BeamRows(ModelSession):
    """Reads the last tokens of beams; where several continue one, its keys, values and states are copied.

    Args:
        loaded: The model.
        prompts: The beam searches.
        capacity: Maximum number of tokens of a beam.
        vocab_size: V.
    """

    def __init__(
        self, loaded: LoadedModel, prompts: Sequence[PromptBeams], capacity: int, *, vocab_size: int
    ) -> None:
        super().__init__(loaded, len(prompts), capacity, vocab_size=vocab_size)
        self._prompts, self._most = prompts, capacity
        self._row_of = [[number] * len(prompt.running) for number, prompt in enumerate(prompts)]

    @inference_only
    def forward(
        self,
        uncached: Sequence[Sequence[int]],
        draft: Tensor | None = None,
        draft_lengths: Sequence[int] | None = None,
        *_: Any,
    ) -> Tensor:
        """Read the prompts, and then each running beam's last token; see `ModelSession.forward`."""
        if draft is None or draft_lengths is None:
            return super().forward(uncached)
        beams = [prompt.running[:n] for prompt, n in zip(self._prompts, draft_lengths, strict=True)]
        pairs = zip(self._row_of, beams, strict=True)
        rows = [row_of[beam.origin] for row_of, own in pairs for beam in own]
        self.resume(rows, [self.lengths[row] for row in rows], self._most)
        logits = super().forward([[beam.pending or 0] for own in beams for beam in own])[:, 0]
        numbers = iter(range(len(rows)))
        self._row_of = [[next(numbers) for _ in own] for own in beams]
        return pad_sequence(list(torch.split(logits, list(draft_lengths))), batch_first=True)

    def prune(self, nodes: Sequence[Sequence[int]], trunks: Sequence[int]) -> None:
        """Do nothing: the rows follow the beams."""
