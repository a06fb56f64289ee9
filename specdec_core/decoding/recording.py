"""What was drawn in a step: the tokens, and the q of each, put into one form when the proposal is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from specdec_core.border import Dense, Distribution, Overlay, PointMass, Proposal
from specdec_core.overlay import RowAt

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Certain:
    """The tokens of a place were certain."""


@dataclass(frozen=True)
class _Written:
    """The q of a place stands in the buffer."""


# Rows that drew no token at a place have None.
_Place: TypeAlias = "_Certain | _Written | list[RowAt | None]"


class DraftRecord:
    """The tokens of a step, one a row at each place, with the q each was drawn from.

    Args:
        batch_size: B.
        max_gamma: The most places.
        vocab_size: V.
        device: Where the proposal is wanted.
    """

    def __init__(self, batch_size: int, max_gamma: int, vocab_size: int, device: torch.device) -> None:
        self._batch = batch_size
        self._shape = (batch_size, max_gamma, vocab_size)
        self._device = device
        self._buffer: Tensor | None = None
        self._overlays = _OverlayBuilder(self._shape, device)
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded; the buffer for dense q is kept."""
        self._tokens: list[Tensor | list[int]] = []
        self._places: list[_Place] = []
        self._taken: list[list[int]] = []
        self._taken_q = False

    @property
    def taken(self) -> bool:
        """Whether tokens came by `take`, for each row its own number of them."""
        return bool(self._taken)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def buffer(self) -> Tensor:
        """Where dense q is written, `[B, max_gamma, V]` float32; made when it is first needed."""
        if self._buffer is None:
            self._buffer = torch.zeros(self._shape, device=self._device)
        return self._buffer

    def next_q(self) -> Tensor:
        """Return where the q of the next place is to be written, `[B, V]` float32."""
        return self.buffer[:, len(self)]

    def add_written(self, tokens: Tensor) -> None:
        """Record a place whose q was written to `next_q()`."""
        self._add(tokens, _Written())

    def add_certain(self, tokens: Tensor | list[int]) -> None:
        """Record a place whose tokens `[B]` were certain."""
        self._add(tokens, _Certain())

    def add_overlay(self, tokens: list[int], rows: list[RowAt | None]) -> None:
        """Record a place whose tokens were drawn from overlays; None in rows that drew nothing."""
        self._add(tokens, rows)

    def take(self, rows: Sequence[Sequence[int]], q: Tensor | None) -> None:
        """Record more tokens of each row, as many as it has; nothing that was added has a place beside them.

        Args:
            rows: B sequences of tokens.
            q: `[B, K, V]`, what they were drawn from, K at least the most of them; None where they were certain.
        """
        if not self._taken:
            self._taken = [[] for _ in range(self._batch)]
        for index, (had, new) in enumerate(zip(self._taken, rows, strict=True)):
            if q is not None:
                self.buffer[index, len(had) : len(had) + len(new)] = q[index, : len(new)]
            had.extend(new)
        self._taken_q = self._taken_q or q is not None

    def _add(self, tokens: Tensor | list[int], place: _Place) -> None:
        self._tokens.append(tokens)
        self._places.append(place)

    def tokens(self) -> Tensor:
        """Return all tokens, `[B, K]` int64."""
        if self._taken:
            return self._send(Proposal.from_rows(self._taken).tokens)
        if not self._tokens:
            return torch.zeros(self._batch, 0, dtype=torch.long, device=self._device)
        lists = [tokens for tokens in self._tokens if isinstance(tokens, list)]
        if len(lists) == len(self._tokens):
            return self._send(torch.from_numpy(np.array(lists, dtype=np.int64).T.copy()))
        return torch.stack([self._column(tokens) for tokens in self._tokens], dim=1)

    def _column(self, tokens: Tensor | list[int]) -> Tensor:
        return self._send(tokens if isinstance(tokens, Tensor) else torch.tensor(tokens))

    def _send(self, tensor: Tensor) -> Tensor:
        """Move to the device without waiting for it."""
        return tensor.to(self._device, non_blocking=True)

    def rows(self) -> list[list[int]]:
        """Return the tokens of each row."""
        rows: list[list[int]] = self.tokens().tolist()
        return rows

    def q(self) -> Distribution:
        """Return q of all places, in the form that costs least, in memory that the next step writes to again."""
        places = self._places
        if self._taken_q:
            return Dense(self.buffer[:, : max(map(len, self._taken))])
        if all(isinstance(place, _Certain) for place in places):
            return PointMass()
        overlays = [place for place in places if isinstance(place, list)]
        if len(overlays) == len(places):
            q = self._overlays.build(overlays)
            if q is not None:
                return q
        for number, place in enumerate(places):
            self._write(number, place)
        return Dense(self.buffer[:, : len(places)])

    def _write(self, number: int, place: _Place) -> None:
        """Write out the q of a place, unless it is written."""
        if isinstance(place, _Certain):
            tokens = self._column(self._tokens[number])
            self.buffer[:, number].zero_().scatter_(1, tokens[:, None], 1.0)
        elif isinstance(place, list):
            written = np.zeros((self._batch, self._shape[2]), dtype=np.float32)
            for out, row in zip(written, place, strict=True):
                if row is not None:
                    row.write(out)
            self.buffer[:, number].copy_(torch.from_numpy(written), non_blocking=True)


class _OverlayBuilder:
    """Puts what was drawn from overlays into one form, in memory that is used again in every step.

    Fresh memory of this size would cost more than what is written to it.
    """

    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        self._batch, _, self._vocab = shape
        self._device = device
        self._ids = np.empty(0, dtype=np.int32)
        self._probabilities = np.empty(0, dtype=np.float32)

    def build(self, places: Sequence[list[RowAt | None]]) -> Overlay | None:
        """Return the overlay of K places; None where writing q out takes no more memory."""
        drawn = [row for place in places for row in place if row is not None]
        background = drawn[0].background
        widest = max([len(row.ids) for row in drawn])
        if 2 * widest > self._vocab or any(row.background is not background for row in drawn):
            return None
        ids, probabilities = self._reserve(len(places), widest)
        scale = np.zeros((self._batch, len(places)), dtype=np.float32)
        for number, place in enumerate(places):
            for index, row in enumerate(place):
                if row is None:
                    ids[index, number], probabilities[index, number] = 0, 0
                else:
                    scale[index, number] = row.scale
                    _list(row, ids[index, number], probabilities[index, number])
        return Overlay(
            self._tensor(ids), self._tensor(probabilities), background.tensor(self._device), self._tensor(scale)
        )

    def _reserve(self, places: int, widest: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        shape = self._batch, places, widest
        count = self._batch * places * widest
        if len(self._ids) < count:
            self._ids = np.empty(2 * count, dtype=np.int32)
            self._probabilities = np.empty(2 * count, dtype=np.float32)
        return self._ids[:count].reshape(shape), self._probabilities[:count].reshape(shape)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _list(row: RowAt, ids: NDArray[np.int32], probabilities: NDArray[np.float32]) -> None:
    """Write what a row lists, `[S]`, and fill up as `Overlay` says."""
    count = len(row.ids)
    if not count:
        ids[:], probabilities[:] = 0, row.density(0)
        return
    ids[:count], probabilities[:count] = row.ids, row.probabilities
    if count < len(ids):
        ids[count:], probabilities[count:] = row.ids[-1], row.probabilities[-1]
