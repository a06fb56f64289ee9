"""A batch of a drafter that attends to the committed tokens, by keys and values made of the target's states."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec_core.interface import DraftRequest, DraftSession
from specdec_core.models import moved, uploaded

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


class ContextSession(DraftSession):
    """A cache of keys and values of committed tokens.

    It holds, for each row, those of its first `_kept` tokens, of token t in slot t. Only committed tokens that
    the target has read have one, so that a rejected draft leaves nothing to undo.

    Args:
        make: Takes the target's states of N tokens, `[N, D]` for each of `layers`, and their positions, `[N]`
            int64. Returns keys and values for each layer of the cache, each `[N, H, head_dim]`.
        layers: The layers of the target whose states are read; see `Drafter.hidden_layers`.
        batch_size: B.
        slots: The most tokens of a row.
        like: A tensor with the data type and the device of the cache.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Tensor], Tensor], Sequence[KeysValues]],
        layers: Sequence[int],
        batch_size: int,
        slots: int,
        like: Tensor,
    ) -> None:
        self._make, self._layers, self._slots, self._like = make, tuple(layers), slots, like
        self._kept = [0] * batch_size
        self._cache: list[KeysValues] = []

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep the slots of the tokens that are left."""
        self._kept = list(map(min, self._kept, lengths))

    def close(self) -> None:
        """Free the cache."""
        self._cache = []

    def _read(self, request: DraftRequest) -> list[KeysValues]:
        """Put the committed tokens that the target has read since the last draft into the cache.

        Rows that draft nothing are skipped, and catch up when they draft again.

        Returns:
            Keys and values of each layer, `[B, H, T, head_dim]`, T the longest row's number; see `_kept`.
        """
        rows: list[int] = []
        slots: list[int] = []
        for index, (row, most) in enumerate(zip(request.tokens, request.budget, strict=True)):
            if not most:
                continue
            end = len(row) - 1
            first = min(self._kept[index], end)
            self._kept[index] = end
            rows += [index] * (end - first)
            slots += range(first, end)
        kept = [request.hidden_states[layer] for layer in self._layers]
        where, positions = uploaded([rows, slots], kept[0].device, torch.long)
        made = self._make([one[where, positions] for one in kept], positions)
        if not self._cache:
            # Not new_empty: masked slots are multiplied by zero, and zero times NaN is NaN.
            batch, most = len(self._kept), self._slots
            shapes = [(batch, keys.shape[1], most, keys.shape[2]) for keys, _ in made]
            self._cache = [(self._like.new_zeros(shape), self._like.new_zeros(shape)) for shape in shapes]
        where, positions = moved(where, self._like.device), moved(positions, self._like.device)
        for cached, new in zip(self._cache, made, strict=True):
            for buffer, values in zip(cached, new, strict=True):
                buffer[where, :, positions] = values.to(buffer)
        end = max(self._kept)
        return [(keys[:, :, :end], values[:, :, :end]) for keys, values in self._cache]
