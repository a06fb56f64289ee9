"""The key-value cache: buffers that are written in place; `ModelSession.rollback` only changes a length.

A slot is a position: slot i of a row holds the keys and values of the row's i-th token. Slots after the row's
length are stale: they are masked, and the next forward pass overwrites them. A step concatenates and copies
nothing. Buffers hold `CHUNK` tokens at first, and twice as many whenever they are full. Sliding-window layers also
keep all slots, so that they roll back like the others; the window is in the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specdec_core.models.device import use_huge_pages

CHUNK = 1024
"""Tokens of a row that a cache holds at first, if its maximum is not lower."""


class WritePlan(NamedTuple):
    """Where the next forward pass writes; shared by all layers.

    Attributes:
        batch: The rows of the buffers that take part.
        start: First slot to write, if all rows start at the same slot; else the lowest length of a row.
        end: The pass attends to slots `0 .. end - 1`, subject to the mask.
        slots: `[B, T]` int64, the slot of each new token, if rows start at different slots; else None.
        rows: `[B]` int64, which rows of `batch` take part, if they are not neighbors; None for all. Requires
            `slots`.
        first: Whether it is the first pass, which attends to its own tokens as they are, padding included.
    """

    batch: slice
    start: int
    end: int
    slots: Tensor | None = None
    rows: Tensor | None = None
    first: bool = False


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one attention layer, each `[B, H, capacity + 1, D]`.

    The last slot is never read. Padding in ragged batches is written there.
    """

    is_sliding = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner

    @classmethod
    def over(cls, owner: SlotCache, keys: Tensor, values: Tensor) -> SlotLayer:
        """Return a layer on the buffers of another."""
        layer = cls(owner)
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers in the first forward pass, which determines their shape, dtype and device."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, states: Tensor) -> Tensor:
        # Not new_empty: masked slots are multiplied by zero, and zero times NaN is NaN.
        shape = (self._owner.rows, states.shape[1], self._owner.capacity + 1, states.shape[3])
        buffer = states.new_zeros(shape)
        use_huge_pages(buffer)
        return buffer

    def grow(self) -> None:
        """Copy the buffers to larger ones, of the owner's capacity."""
        if self.is_initialized:
            self.keys, self.values = map(self._grown, (self.keys, self.values))

    def _grown(self, states: Tensor) -> Tensor:
        larger = self._buffer(states)
        larger[:, :, : states.shape[2] - 1] = states[:, :, :-1]
        return larger

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values `[B, H, T, D]` in place; return those of slots `0 .. end - 1`."""
        self.write(key_states, value_states)
        plan = self._owner.plan
        if plan.first:
            return key_states, value_states
        seen = [states[plan.batch, :, : plan.end] for states in (self.keys, self.values)]
        keys, values = seen if plan.rows is None else [states[plan.rows.to(states.device)] for states in seen]
        return keys, values

    def write(self, key_states: Tensor, value_states: Tensor) -> None:
        """Write new keys and values `[B, H, T, D]` in place."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self._owner.plan
        keys, values = self.keys[plan.batch], self.values[plan.batch]
        if plan.slots is None:
            keys[:, :, plan.start : plan.start + key_states.shape[2]] = key_states
            values[:, :, plan.start : plan.start + key_states.shape[2]] = value_states
        else:
            slots = plan.slots.to(keys.device)  # layers may be spread over devices
            among = torch.arange(keys.shape[0], device=keys.device) if plan.rows is None else plan.rows
            rows = among.to(keys.device)[:, None]
            keys[rows, :, slots] = key_states.transpose(1, 2)
            if value_states.shape[3]:  # hidden states, which are kept as keys, have no values
                values[rows, :, slots] = value_states.transpose(1, 2)

    def select(self, rows: Sequence[int]) -> None:
        """Keep some rows, in the order given; one may be taken several times."""
        if self.is_initialized:
            index = torch.tensor(rows, device=self.keys.device)
            self.keys, self.values = self.keys[index], self.values[index]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the keys and values of slots to other slots, each `[B, D]` int64."""
        sources, targets = sources.to(self.keys.device), targets.to(self.keys.device)
        for states in (self.keys, self.values):
            heads, width = states.shape[1], states.shape[3]
            read, written = (slots[:, None, :, None].expand(-1, heads, -1, width) for slots in (sources, targets))
            states.scatter_(2, written, states.gather(2, read))

    def get_seq_length(self) -> int:
        """Return the number of tokens before those being written."""
        return self._owner.plan.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a mask covers, and its offset."""
        return self._owner.plan.start + query_length, 0

    def get_max_length(self) -> int:
        """Return the maximum number of tokens."""
        return self._owner.maximum


class SlotCache(Cache):  # type: ignore[misc]
    """A cache with one `SlotLayer` per layer of the model, created on first use. All follow the same `plan`.

    Args:
        batch_size: B.
        maximum: Maximum number of tokens per row.
        fixed: Allocate the maximum at once, for passes that are captured with the buffers.

    Attributes:
        capacity: Number of tokens per row that the buffers hold.
    """

    def __init__(self, batch_size: int, maximum: int, *, fixed: bool = False) -> None:
        self.rows = batch_size
        self.maximum = maximum
        self._fixed = fixed
        self.capacity = maximum if fixed else min(maximum, CHUNK)
        self.plan = WritePlan(slice(None), 0, 0)
        self._states: dict[int, SlotLayer] = {}
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self))

    @classmethod
    def over(cls, buffers: Sequence[Tensor], states: Sequence[int] = ()) -> SlotCache:
        """Return a cache on the buffers of another.

        Args:
            buffers: The other's `buffers`.
            states: The numbers of the layers whose hidden states it keeps.
        """
        cache = cls(buffers[0].shape[0], buffers[0].shape[2] - 1, fixed=True)
        count = len(buffers) - len(states)
        for keys, values in zip(buffers[:count:2], buffers[1:count:2], strict=True):
            cache.layers.append(SlotLayer.over(cache, keys, values))
        for layer, kept in zip(states, buffers[count:], strict=True):
            cache._states[layer] = SlotLayer.over(cache, kept, kept[..., :0])
        return cache

    def run(self, model: Any, argument: str, keywords: dict[str, Any]) -> Any:
        """Run a model that reads and writes this cache.

        Args:
            model: The model.
            argument: The argument of its forward that takes the cache.
            keywords: The other arguments.
        """
        return model(**keywords, **{argument: self})

    def _slots(self) -> list[SlotLayer]:
        """Return the layers that have slots, then the hidden states."""
        return [layer for layer in (*self.layers, *self._states.values()) if isinstance(layer, SlotLayer)]

    def reserve(self, tokens: int) -> None:
        """Let the buffers hold so many tokens of each row, as far as the maximum allows."""
        if self.capacity < min(tokens, self.maximum):
            self.capacity = min(max(tokens, 2 * self.capacity), self.maximum)
            for layer in self._slots():
                layer.grow()

    def resume(self, rows: Sequence[int], maximum: int) -> None:
        """Continue with some of the rows, and with room for at least so many tokens of each.

        Args:
            rows: The row that each new row continues; one may be continued by several.
            maximum: Maximum number of tokens per row from now on.
        """
        if list(rows) != list(range(self.rows)):
            self.rows = len(rows)
            for layer in self._slots():
                layer.select(rows)
        self.maximum = max(self.maximum, maximum)
        if self._fixed:
            self.reserve(self.maximum)

    @property
    def kept(self) -> tuple[int, ...]:
        """The layers whose hidden states it keeps."""
        return tuple(self._states)

    def buffers(self) -> list[Tensor]:
        """Return the keys and values of each layer, then the hidden states. Empty before the first pass."""
        keys_and_values = [buffer for layer in self.layers for buffer in (layer.keys, layer.values)]
        return keys_and_values + [kept.keys for kept in self._states.values()]

    def keep_states(self, layer: int, states: Tensor) -> None:
        """Write the hidden states `[B, T, D]` of the tokens of a pass to the slots of their keys and values."""
        column = states[:, None]
        self._states.setdefault(layer, SlotLayer(self)).write(column, column[..., :0])

    def states(self, end: int) -> dict[int, Tensor]:
        """Return the hidden states in slots `0 .. end - 1` of each layer that keeps them, `[B, end, D]`."""
        return {layer: kept.keys[:, 0, :end] for layer, kept in self._states.items()}

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots to other slots in every layer, each `[B, D]` int64; all are read before one is written."""
        for layer in self._slots():
            layer.move(sources, targets)
