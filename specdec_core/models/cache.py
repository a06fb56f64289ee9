"""Keys and values in preallocated buffers: appending writes in place, rolling back moves a number.

A slot is a position: the keys of a row's i-th token lie in slot i of the row. What lies behind a row's length
is stale, is never attended to, and is overwritten by the next append. Nothing is concatenated or copied in a
step; sliding-window layers keep all slots too (the window is in the mask), so that they roll back like others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True)
class WritePlan:
    """Where the next forward writes; shared by all layers.

    Attributes:
        batch: The rows of the buffers that take part.
        start: First slot written, where all rows begin at the same slot.
        end: Slots in `0 .. end-1` are what the queries may see (the mask says which of them they do).
        slots: `[B, T]` int64, the slot of each new token, where rows begin at different slots; else None.
    """

    batch: slice
    start: int
    end: int
    slots: Tensor | None = None


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of one attention layer, each `[B, H, capacity + 1, D]`.

    The last slot takes what must be written somewhere and never read: padding in ragged batches.
    """

    is_sliding = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers once the first forward shows heads, sizes, dtype and device."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, states: Tensor) -> Tensor:
        # Zeros, not empty: a masked slot is multiplied by zero, and zero times NaN is NaN.
        shape = (self._owner.rows, states.shape[1], self._owner.capacity + 1, states.shape[3])
        return states.new_zeros(shape)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new states `[B, H, T, D]` in place; return views on all that may be seen."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self._owner.plan
        keys, values = self.keys[plan.batch], self.values[plan.batch]
        if plan.slots is None:
            keys[:, :, plan.start : plan.start + key_states.shape[2]] = key_states
            values[:, :, plan.start : plan.start + key_states.shape[2]] = value_states
        else:
            slots = plan.slots.to(keys.device)  # layers may be spread over devices
            rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
            keys[rows, :, slots] = key_states.transpose(1, 2)
            values[rows, :, slots] = value_states.transpose(1, 2)
        return keys[:, :, : plan.end], values[:, :, : plan.end]

    def get_seq_length(self) -> int:
        """Return the number of tokens before the ones being written."""
        return self._owner.plan.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a mask covers, and its offset."""
        return self._owner.plan.start + query_length, 0

    def get_max_length(self) -> int:
        """Return the capacity in tokens."""
        return self._owner.capacity


class SlotCache(Cache):  # type: ignore[misc]
    """One `SlotLayer` a layer of the model, all following the same plan; layers appear as the model asks.

    Args:
        batch_size: B.
        capacity: The most tokens a row may hold.
    """

    def __init__(self, batch_size: int, capacity: int) -> None:
        self.rows = batch_size
        self.capacity = capacity
        self.plan = WritePlan(slice(None), 0, 0)
        super().__init__(layer_class_to_replicate=partial(SlotLayer, self))
