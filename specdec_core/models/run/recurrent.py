"""The cache of a model with recurrent layers: states that change with each token, and snapshots of them.

Keys and values are rolled back by a length. A recurrent state has read every token of a pass, and what it was
before a rejected one is known only if it was kept. So a state is copied before a pass reads drafted tokens. After
a rejection the copy is restored, and nothing is run: tokens that were accepted are read with the next draft.

States belong to rows, and padding would change them: a pass has rows that read equally many tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any, TypeAlias

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only
from specdec_core.models.run.cache import SlotCache, SlotLayer, WritePlan

_KINDS = ("conv_states", "recurrent_states")
"""What transformers keeps of a recurrent layer, a tensor `[B, ...]` for each of its states."""

Snapshot: TypeAlias = tuple[int, Any]
"""A number of tokens, and the states after them: tensors, or a whole cache."""


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]  # transformers is not typed
    """The states of a recurrent layer, of which those of a pass are in the attributes that transformers reads.

    Args:
        owner: The cache.
        states: Number of states of the layer.
    """

    def __init__(self, owner: SlotCache, states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=states)
        self._cache = owner
        self._whole: dict[tuple[str, int], Tensor] = {}  # of all rows

    def lazy_initialization(self, **states: Any) -> None:
        """Allocate the states of all rows in the first pass; see `LinearAttentionLayer`."""
        LinearAttentionLayer.lazy_initialization(self, **states)
        for kind in _KINDS:
            held = getattr(self, kind)
            for number, state in held.items():
                if state is not None and (kind, number) not in self._whole:
                    self._whole[kind, number] = state.new_zeros(self._cache.rows, *state.shape[1:])
                    held[number] = self._of_rows(self._whole[kind, number])

    def _of_rows(self, whole: Tensor) -> Tensor:
        """Return the states of the rows of the pass: a view, or a copy for rows that are not neighbors."""
        plan = self._cache.plan
        return whole[plan.batch if plan.rows is None else plan.rows.to(whole.device)]

    def show(self) -> None:
        """Show the states of the rows of the next pass."""
        begun = self._cache.plan.start > 0
        self.has_previous_state = dict.fromkeys(range(self.number_of_states), begun)
        for (kind, number), whole in self._whole.items():
            getattr(self, kind)[number] = self._of_rows(whole)

    def keep(self) -> None:
        """Keep the states of the rows of the last pass, where they were copies."""
        rows = self._cache.plan.rows
        if rows is not None:
            for (kind, number), whole in self._whole.items():
                whole[rows.to(whole.device)] = getattr(self, kind)[number]

    def states(self, row: int) -> list[Tensor]:
        """Return the states of a row, in memory that the next pass changes."""
        return [whole[row] for whole in self._whole.values()]

    def resume(self, rows: Sequence[int]) -> None:
        """Keep some rows, in the order given; one may be taken several times."""
        self._whole = {name: whole[list(rows)] for name, whole in self._whole.items()}


class StateSlotLayer(StateLayer, SlotLayer):
    """A layer that has recurrent states, and keys and values as well."""

    def __init__(self, owner: SlotCache, states: int) -> None:
        SlotLayer.__init__(self, owner)
        StateLayer.__init__(self, owner, states)

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
        self.layers = [self._layer(like) for like in DynamicCache(config=config).layers]
        self.layer_class_to_replicate = None
        self._recurrent = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        self._snapshots = [deque[Snapshot](maxlen=snapshots) for _ in range(batch_size)]

    def _layer(self, like: Any) -> Any:
        if isinstance(like, LinearAttentionCacheLayerMixin):
            make = StateSlotLayer if isinstance(like, CacheLayerMixin) else StateLayer
            return make(self, like.number_of_states)
        return SlotLayer(self) if isinstance(like, CacheLayerMixin) else like  # which keeps nothing

    @property
    def plan(self) -> WritePlan:
        """Where the next forward pass writes: slots of rows whose states the layers show."""
        return self._plan

    @plan.setter
    def plan(self, plan: WritePlan) -> None:
        self._plan = plan
        for layer in self._recurrent:
            layer.show()

    def keep(self) -> None:
        """Keep the states after the last pass."""
        for layer in self._recurrent:
            layer.keep()

    def examples(self) -> list[Tensor]:
        """Return one of the states of each kind and shape, of all rows."""
        return _examples(self.layers)

    @inference_only
    def take(self, row: int, length: int) -> None:
        """Keep a copy of a row's states, which have read `length` tokens."""
        kept = self._snapshots[row]
        if not length or (kept and kept[-1][0] == length):
            return  # a text that begins again needs none, and a state that was restored has one
        kept.append((length, self._saved(row, kept.popleft()[1] if len(kept) == kept.maxlen else None)))

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
        self._restore(row, kept[-1][1] if kept else None)
        return kept[-1][0] if kept else 0

    def _saved(self, row: int, older: list[Tensor] | None) -> Any:
        """Return a copy of a row's states, in the memory of an older one if there is one."""
        states = [state for layer in self._recurrent for state in layer.states(row)]
        buffers = [state.clone() for state in states] if older is None else older
        for buffer, state in zip(buffers, states, strict=True):
            buffer.copy_(state)
        return buffers

    def _restore(self, row: int, saved: Any) -> None:
        """Give a row the states of a copy; without one, let it begin again."""
        if saved is None:
            return
        states = (state for layer in self._recurrent for state in layer.states(row))
        for state, buffer in zip(states, saved, strict=True):
            state.copy_(buffer)

    def resume(self, rows: Sequence[int], maximum: int) -> None:
        """See `SlotCache.resume`."""
        if list(rows) != list(range(self.rows)):
            for layer in self._recurrent:
                layer.resume(rows)
            self._snapshots = [deepcopy(self._snapshots[row]) for row in rows]
        super().resume(rows, maximum)


class OwnCache(RecurrentCache):
    """A cache of any kind, which the model makes: one for each row, and snapshots of the whole.

    Args:
        batch_size: B.
        maximum: Maximum number of tokens per row.
        snapshots: How many snapshots of a row are kept.
    """

    def __init__(self, batch_size: int, maximum: int, snapshots: int = 1) -> None:
        self._recurrent = []
        SlotCache.__init__(self, batch_size, maximum)
        self._made: list[Any] = [None] * batch_size
        self._snapshots = [deque[Snapshot](maxlen=snapshots) for _ in range(batch_size)]

    def run(self, model: Any, argument: str, keywords: dict[str, Any]) -> Any:
        """See `SlotCache.run`.

        Raises:
            ModelError: The model returns no cache, or is to read several prompts in one pass.
        """
        row, *others = range(self.rows)[self.plan.batch]
        if others:
            raise ModelError(
                f"{type(model).__name__} makes a cache of its own kind, which holds one row, and "
                f"{1 + len(others)} prompts with more than token ids were given. Pass them to generate one by one."
            )
        given = {} if self._made[row] is None else {argument: self._made[row]}
        output = model(**keywords, **given)
        self._made[row] = getattr(output, argument, None)
        if self._made[row] is None:
            raise ModelError(
                f"{type(model).__name__} (model_type {model.config.model_type!r}) returns no {argument}: what it "
                "keeps of earlier tokens is in its modules, and cannot be rolled back when drafts are rejected."
            )
        return output

    def examples(self) -> list[Tensor]:
        """Return one of the states of each kind and shape, of the first row."""
        return _examples(getattr(self._made[0], "layers", ()))

    def _saved(self, row: int, older: Any) -> Any:  # noqa: ARG002  # there is nothing to reuse
        return _copied(self._made[row])

    def _restore(self, row: int, saved: Any) -> None:
        self._made[row] = _copied(saved)

    def resume(self, rows: Sequence[int], maximum: int) -> None:
        """See `SlotCache.resume`."""
        self._made = [_copied(self._made[row]) for row in rows]
        self._snapshots = [copy(self._snapshots[row]) for row in rows]
        SlotCache.resume(self, rows, maximum)


def _examples(layers: Sequence[Any]) -> list[Tensor]:
    layers = [layer for layer in layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
    states = [(kind, state) for layer in layers for kind in _KINDS for state in getattr(layer, kind).values()]
    found = [(kind, state) for kind, state in states if state is not None and state.is_floating_point()]
    return list({(kind, state.shape): state for kind, state in found}.values())


def _copied(cache: Any) -> Any:
    """Return a copy that shares what attention has read, which transformers concatenates, never in place."""
    layers = [layer for layer in getattr(cache, "layers", ()) if isinstance(layer, CacheLayerMixin)]
    tensors = [value for layer in layers for value in vars(layer).values() if isinstance(value, Tensor)]
    return deepcopy(cache, {id(tensor): tensor for tensor in tensors})
