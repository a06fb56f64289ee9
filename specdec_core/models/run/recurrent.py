"""The cache of a model with recurrent layers: states that change with each token, and snapshots of them.

Keys and values are rolled back by a length. A recurrent state has read every token of a pass, and what it was
before a rejected one is known only if it was kept. So a state is copied before a pass reads drafted tokens. After
a rejection the copy is restored, and nothing is run: tokens that were accepted are read with the next draft.

States belong to rows, and padding would change them: each row takes a pass of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from specdec_core.models.device import inference_only
from specdec_core.models.run.cache import SlotCache, SlotLayer, WritePlan

_TENSORS = ("conv_states", "recurrent_states")
_FIELDS = (
    *_TENSORS,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""What transformers keeps of a recurrent layer, each a dict."""

Snapshot: TypeAlias = tuple[int, list[Tensor]]
"""A number of tokens, and the states after them."""


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]  # transformers is not typed
    """The states of a recurrent layer, those of one row at a time in the attributes that transformers reads.

    Args:
        rows: Number of rows.
        states: Number of states of the layer.
    """

    def __init__(self, rows: int, states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=states)
        fresh = vars(LinearAttentionLayer(number_of_states=states))
        self._rows = [deepcopy({name: fresh[name] for name in _FIELDS}) for _ in range(rows)]

    def use(self, row: int) -> None:
        """Show the states of a row."""
        for name, held in self._rows[row].items():
            setattr(self, name, held)

    def states(self, row: int) -> list[Tensor]:
        """Return the states of a row, in memory that the next pass changes."""
        fields = self._rows[row]
        return [state for name in _TENSORS for state in fields[name].values() if state is not None]

    def forget(self, row: int) -> None:
        """Let a row begin again: its next pass is its first."""
        previous = self._rows[row]["has_previous_state"]
        previous.update(dict.fromkeys(previous, False))

    def resume(self, rows: Sequence[int]) -> None:
        """Keep some rows, in the order given; one may be taken several times."""
        self._rows = [deepcopy(self._rows[row]) for row in rows]


class StateSlotLayer(StateLayer, SlotLayer):
    """A layer that has recurrent states, and keys and values as well."""

    def __init__(self, owner: SlotCache, rows: int, states: int) -> None:
        SlotLayer.__init__(self, owner)
        StateLayer.__init__(self, rows, states)

    def lazy_initialization(self, *keys_and_values: Tensor, **states: Any) -> None:
        """Allocate keys and values, or states, in the first pass."""
        if keys_and_values:
            SlotLayer.lazy_initialization(self, *keys_and_values)
        else:
            StateLayer.lazy_initialization(self, **states)


class RecurrentCache(SlotCache):
    """A cache whose attention layers have slots, and whose recurrent layers have states with snapshots.

    Args:
        config: The config of the model.
        batch_size: B.
        maximum: Maximum number of tokens per row.
        snapshots: How many snapshots of a row are kept.
    """

    def __init__(self, config: Any, batch_size: int, maximum: int, snapshots: int = 1) -> None:
        self._recurrent: list[StateLayer] = []
        super().__init__(batch_size, maximum)
        self.layers = [self._layer(like, batch_size) for like in DynamicCache(config=config).layers]
        self.layer_class_to_replicate = None
        self._recurrent = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        self._snapshots = [deque[Snapshot](maxlen=snapshots) for _ in range(batch_size)]

    def _layer(self, like: Any, rows: int) -> Any:
        if isinstance(like, LinearAttentionCacheLayerMixin):
            if isinstance(like, CacheLayerMixin):
                return StateSlotLayer(self, rows, like.number_of_states)
            return StateLayer(rows, like.number_of_states)
        return SlotLayer(self) if isinstance(like, CacheLayerMixin) else like  # which keeps nothing

    @property
    def plan(self) -> WritePlan:
        """Where the next forward pass writes: slots of one row, whose states the layers show."""
        return self._plan

    @plan.setter
    def plan(self, plan: WritePlan) -> None:
        self._plan = plan
        for layer in self._recurrent:
            layer.use(plan.batch.start or 0)

    @inference_only
    def take(self, row: int, length: int) -> None:
        """Keep a copy of a row's states, which have read `length` tokens."""
        kept = self._snapshots[row]
        if not length or (kept and kept[-1][0] == length):
            return  # a text that begins again needs none, and a state that was restored has one
        states = [state for layer in self._recurrent for state in layer.states(row)]
        buffers = kept.popleft()[1] if len(kept) == kept.maxlen else [state.clone() for state in states]
        for buffer, state in zip(buffers, states, strict=True):
            buffer.copy_(state)
        kept.append((length, buffers))

    @inference_only
    def settle(self, row: int, length: int, wanted: int) -> int:
        """Roll a row back; return how many tokens it has read then: at most `wanted`, or it stays as it is.

        Args:
            row: The row.
            length: How many tokens its states have read.
            wanted: How many may be left.
        """
        if length <= wanted:
            return length
        kept = self._snapshots[row]
        while kept and kept[-1][0] > wanted:
            kept.pop()
        if not kept:
            for layer in self._recurrent:
                layer.forget(row)
            return 0
        length, buffers = kept[-1]
        states = (state for layer in self._recurrent for state in layer.states(row))
        for state, buffer in zip(states, buffers, strict=True):
            state.copy_(buffer)
        return length

    def resume(self, rows: Sequence[int], maximum: int) -> None:
        """See `SlotCache.resume`."""
        if list(rows) != list(range(self.rows)):
            for layer in self._recurrent:
                layer.resume(rows)
            self._snapshots = [deepcopy(self._snapshots[row]) for row in rows]
        super().resume(rows, maximum)
