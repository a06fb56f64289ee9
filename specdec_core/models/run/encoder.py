"""The encoder of an encoder-decoder model: its output for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import moved, uploaded
from specdec_core.models.loaded import LoadedModel, attention_of
from specdec_core.models.run.cache import SlotCache


class Encoded(NamedTuple):
    """What an encoder gave for the sources of a batch.

    Attributes:
        states: `[B, S, D]`.
        mask: `[B, S]`, 0 for padding; or that of what the encoder read, where this has another length, for the
            model to convert. None where nothing is masked.
        encoder: The module that gave it.
        inputs: The arguments that it was given, each `[B, ...]`, where these are no token ids; else none.
    """

    states: Tensor
    mask: Tensor | None
    encoder: Any
    inputs: Mapping[str, Tensor] = {}

    @classmethod
    def of(cls, output: Any, mask: Tensor | None, encoder: Any, inputs: Mapping[str, Tensor]) -> Encoded:
        """Return what an encoder gave, with the mask that it made of that of its inputs, if it makes one."""
        mask = getattr(output, "attention_mask", mask)
        return cls(output[0], None if mask is None or mask.bool().all() else mask, encoder, inputs)

    def repeated(self, times: int) -> Encoded:
        """Return the same with each source several times in a row."""
        states, mask, encoder, _ = self
        mask = None if mask is None else mask.repeat_interleave(times, dim=0)
        inputs = {name: part.repeat_interleave(times, dim=0) for name, part in self.inputs.items()}
        return Encoded(states.repeat_interleave(times, dim=0), mask, encoder, inputs)


@dataclass
class EncoderOutput(BaseModelOutput):  # type: ignore[misc]
    """An encoder's output as any model takes it: with what the classes of some families have."""

    attention_mask: Tensor | None = None  # Moonshine
    router_logits: tuple[Tensor, ...] | None = None  # NLLB-MoE


class EncoderMemory:
    """The encoder's output, computed once per batch, and the cross-attention cache made from it.

    Args:
        loaded: The model.
        sources: What its encoder reads, token ids.
        encoded: What an encoder gave. That of another model is not used: this model's reads the same inputs.

    Raises:
        ModelError: A source is longer than the model supports, or there is nothing that its encoder could read.
    """

    def __init__(
        self, loaded: LoadedModel, sources: Sequence[Sequence[int]] | None, encoded: Encoded | None = None
    ) -> None:
        if encoded is None or encoded.encoder is not loaded.model.get_encoder():
            encoded = encode(loaded, sources, encoded)
        self._states, self._mask = encoded.states, encoded.mask
        self._boolean = attention_of(loaded.model) == "sdpa"
        self._cache_argument = loaded.family.cache_argument
        self._keywords: dict[int | None, dict[str, Any]] = {}

    @classmethod
    def over(cls, loaded: LoadedModel, cache: SlotCache, buffers: Sequence[Tensor]) -> EncoderMemory:
        """Return a memory of all rows on the buffers of another, for a pass over `cache`."""
        masked = len(buffers) % 2 == 0
        memory = cls.__new__(cls)
        memory._states, memory._mask = buffers[0], buffers[1] if masked else None
        memory._boolean = attention_of(loaded.model) == "sdpa"
        memory._cache_argument = loaded.family.cache_argument
        pairs = buffers[1 + masked :]
        cross = DynamicCache()
        for keys, values in zip(pairs[::2], pairs[1::2], strict=True):
            layer = DynamicLayer()
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            cross.layers.append(layer)
        memory._keywords = {None: memory._made(EncoderDecoderCache(cache, cross), memory._states, memory._mask)}
        return memory

    def buffers(self) -> list[Tensor]:
        """Return the states, the mask if there is one, and the keys and values that all rows attend to.

        Empty before the first pass over all rows.
        """
        if None not in self._keywords:
            return []
        cross = self._keywords[None][self._cache_argument].cross_attention_cache
        mask = [] if self._mask is None else [self._mask]
        return [self._states, *mask, *(buffer for layer in cross.layers for buffer in (layer.keys, layer.values))]

    def keywords(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        """Return the arguments of `forward` that attend to the sources of these rows: all of them, or one."""
        if batch.start not in self._keywords:
            self._keywords[batch.start] = self._make_keywords(cache, batch)
        return self._keywords[batch.start]

    def _make_keywords(self, cache: SlotCache, batch: slice) -> dict[str, Any]:
        states, mask = self._states, self._mask
        if batch.start is not None:
            if mask is not None and mask.shape[1] == states.shape[1]:
                states, mask = states[:, mask[batch.start].bool()], None
            states, mask = states[batch], None if mask is None else mask[batch]
        return self._made(EncoderDecoderCache(cache, DynamicCache()), states, mask)

    def _made(self, caches: EncoderDecoderCache, states: Tensor, mask: Tensor | None) -> dict[str, Any]:
        output = EncoderOutput(last_hidden_state=states, attention_mask=mask)
        if mask is not None and self._boolean and mask.shape[1] == states.shape[1]:
            # As transformers would make it. From `[B, S]` it would first look whether anything is masked: a wait.
            mask = mask[:, None, None].bool()
        return {
            "encoder_outputs": output,
            "attention_mask": mask,
            self._cache_argument: caches,
        }


def encode(loaded: LoadedModel, sources: Sequence[Sequence[int]] | None, other: Encoded | None = None) -> Encoded:
    """Run a model's encoder for a batch; `EncoderMemory` has the arguments and errors."""
    encoder = loaded.model.get_encoder()
    if sources is None or not loaded.reads_ids:
        if other is None or not other.inputs:
            raise ModelError(
                f"{loaded.name} has an encoder, and what it is to read is not known. A draft model needs weights "
                "of the encoder that are the target's, as distilled decoders have, or the target's inputs."
            )
        with torch.inference_mode(), loaded.lock:
            inputs = {
                name: moved(part.to(loaded.model.dtype) if part.is_floating_point() else part, loaded.device)
                for name, part in other.inputs.items()
            }
            return Encoded.of(encoder(**inputs), inputs.get("attention_mask"), encoder, inputs)
    lengths = [len(source) for source in sources]
    width, limit = max(lengths), loaded.family.max_source
    if limit is not None and width > limit:
        raise ModelError(
            f"{loaded.name} supports sources of at most {limit} tokens, but one has {width}; shorten it."
        )
    pad_id = loaded.model.config.get_text_config().pad_token_id or 0
    ids = [[*source, *[pad_id] * (width - len(source))] for source in sources]
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = None if real.all() else moved(real.long(), loaded.device)
    with torch.inference_mode(), loaded.lock:
        output = encoder(input_ids=uploaded(ids, loaded.device), attention_mask=mask)
    return Encoded(output.last_hidden_state, mask, encoder)
