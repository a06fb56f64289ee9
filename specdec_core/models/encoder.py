"""What the encoder of an encoder-decoder model says of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from specdec_core.interface.errors import ModelError
from specdec_core.models.cache import SlotCache
from specdec_core.models.loaded import LoadedModel

Encoded: TypeAlias = tuple[Tensor, Tensor | None]
"""The encoder's states `[B, S, D]` and their mask `[B, S]`, or None where nothing is masked."""


class EncoderMemory:
    """The encoder's output, computed once per batch, and the cross-attention cache made from it.

    Raises:
        ModelError: A source is longer than the model supports.
    """

    def __init__(
        self, loaded: LoadedModel, sources: Sequence[Sequence[int]] | None, encoded: Encoded | None = None
    ) -> None:
        self._states, self._mask = _encode(loaded, sources) if encoded is None else encoded
        self._keywords: dict[int | None, dict[str, Any]] = {}

    def keywords(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        """Return the arguments of `forward` that attend to the sources of these rows: all of them, or one."""
        if batch.start not in self._keywords:
            self._keywords[batch.start] = self._make_keywords(cache, batch)
        return self._keywords[batch.start]

    def _make_keywords(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        states, mask = self._states, self._mask
        if batch.start is not None:
            states = states[batch] if mask is None else states[batch, mask[batch.start].bool()]
            mask = None
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            "attention_mask": mask,
            "past_key_values": EncoderDecoderCache(cache, DynamicCache()),
        }


def _encode(loaded: LoadedModel, sources: Sequence[Sequence[int]] | None) -> Encoded:
    if sources is None:
        raise ValueError("an encoder-decoder model needs the sources of its batch")
    lengths = [len(source) for source in sources]
    width, limit = max(lengths), loaded.max_positions
    if limit is not None and width > limit:
        raise ModelError(
            f"{loaded.name} supports sources of at most {limit} tokens, but one has {width}; shorten it."
        )
    pad_id = loaded.model.config.get_text_config().pad_token_id or 0
    ids = torch.tensor([[*source, *[pad_id] * (width - len(source))] for source in sources])
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    # No mask without padding: transformers would check its values in every step, which waits for the device.
    mask = None if real.all() else real.long().to(loaded.device)
    with torch.inference_mode():
        output = loaded.model.get_encoder()(input_ids=ids.to(loaded.device), attention_mask=mask)
    return output.last_hidden_state, mask
